"""The agent's NATS client: nats-py's, which hands each message over at once, as the bytes it is.

nats-py reads the headers of every message, makes an object of it and wakes a task to take it, which
together cost more than a launch costs the node otherwise. And there an error ends the loop that
reads from the server: one message whose bytes are no UTF-8, and the agent hears nothing until the
connection counts as stale. What can't be read is delivered all the same: it has used up a token.

`_process_msg`, `_remove_sub`, `_send_command`, `_flush_queue`, `_flush_pending` and `_sid` are
private parts. nats-py is pinned; tests/contract/test_nats_client.py fails loudly on an upgrade that
changes them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nats.aio.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.subscription import Subscription

_log = logging.getLogger(__name__)


class Delivery:
    """A delivered message. Any bytes will do for its subject, its reply subject and its headers."""

    __slots__ = ("_client", "_header_block", "_inbox", "_subject", "data")

    def __init__(
        self, client: AgentClient, subject: bytes, inbox: bytes, header_block: bytes, data: bytes
    ) -> None:
        self.data = data
        self._client = client
        self._subject = subject
        self._inbox = inbox
        self._header_block = header_block

    @property
    def subject(self) -> str:
        """What it was sent to."""
        return self._subject.decode("utf-8", "replace")

    @property
    def reply(self) -> str:
        """Where the requester waits for the answer, or ""."""
        return self._inbox.decode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        """The headers."""
        headers: dict[str, str] = {}
        # What stands before the first line's end is NATS's own.
        for line in (self._header_block or b"").decode("utf-8", "replace").split("\r\n")[1:]:
            name, colon, value = line.partition(":")
            if colon:
                headers[name] = value.strip()
        return headers

    async def respond(self, data: bytes) -> None:
        """Answer the requester."""
        await self._client.answer(self._inbox, data)


class AgentClient(Client):
    """A connection of the agent."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Callable[[Delivery], None]] = {}

    async def hear(
        self, subject: str, take: Callable[[Delivery], None], *, queue: str = ""
    ) -> Subscription:
        """Subscribe. take: gets each message, and must not block.

        Raises nats.errors.Error when the connection is closed.
        """
        self._takers[self._sid + 1] = take  # before the server can deliver anything to it
        return await self.subscribe(subject, queue)

    async def answer(self, inbox: bytes, data: bytes) -> None:
        """Send an answer; all that are sent in one turn of the loop leave in one write.

        Raises nats.errors.Error when it can't be sent.
        """
        if not self.is_connected or len(data) > self.max_payload:
            await self.publish(inbox.decode("utf-8", "replace"), data)  # it knows what to do then
            return
        await self._send_command(b"PUB %b %d\r\n%b\r\n" % (inbox, len(data), data))
        if self._flush_queue and self._flush_queue.empty():
            await self._flush_pending()

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self._takers.pop(sid, None)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Hand a message over to whoever hears its subject."""
        take = self._takers.get(sid)
        if take is None:  # nats-py's own, or forgotten
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        try:
            take(Delivery(self, subject, reply, headers, data))
        except Exception:  # noqa: BLE001 - whatever it is, the next message must be heard
            _log.exception("message not taken")
