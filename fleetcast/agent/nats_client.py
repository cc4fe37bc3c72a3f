"""The agent's NATS client: nats-py's, without what would cost it most of a launch.

Both changes are to what nats-py does for each message; `_parse_header_lines` is a private part.
nats-py is pinned; tests/contract/test_nats_client.py fails loudly on an upgrade that changes it.
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

    msg_class = Delivery

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Read `Name: value` lines. Unlike nats-py it doesn't look at every letter of a name."""
        headers: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                headers[name] = value.strip()
        return headers
