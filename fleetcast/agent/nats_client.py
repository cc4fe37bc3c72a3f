"""The agent's NATS client: nats-py's, without what would cost it most of a launch, or its hearing.

The changes are to what nats-py does for each message. There an error ends the loop that reads from
the server: one message whose bytes are no UTF-8, and the agent hears nothing until the connection
counts as stale. What can't be read is delivered all the same: it has used up a token.

`_build_message`, `_process_headers` and `_parse_header_lines` are private parts. nats-py is pinned;
tests/contract/test_nats_client.py fails loudly on an upgrade that changes them.
"""

from __future__ import annotations

from nats.aio.client import Client
from nats.aio.msg import Msg


class Delivery(Msg):
    """A delivered message."""

    async def respond(self, data: bytes) -> None:
        """Answer the requester, without sending it the headers of its own request."""
        await self._client.publish(self.reply, data)


class AgentClient(Client):
    """A connection of the agent."""

    def _build_message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        data: bytes,
        headers: dict[str, str] | None,
    ) -> Msg:
        """Make the message. Unlike nats-py it takes any bytes for a subject."""
        names = (subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace"))
        return Delivery(self, *names, data, headers, _sid=sid)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Read the headers of a message. Unlike nats-py it takes any bytes."""
        try:
            read: dict[str, str] | None = await super()._process_headers(headers)
        except (ValueError, IndexError):
            return None
        return read

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Read `Name: value` lines. Unlike nats-py it doesn't look at every letter of a name."""
        headers: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers[name] = value.strip()
        return headers
