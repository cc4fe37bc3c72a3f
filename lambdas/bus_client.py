"""The bus's NATS client: nats-py's, with an inbox of its own for all that the bus asks.

nats-py takes more time for a request than a launch takes for all the rest: a random token, a task
that waits with a timeout, headers put together letter by letter. And there an error in reading a
message ends the loop that reads from the server: one reply whose bytes are no UTF-8, and nothing
is heard any more. Here replies are handed over as the bytes that they are.

`_process_msg`, `_send_command`, `_flush_queue`, `_flush_pending` and a subscription's `_id` are
private parts. nats-py is pinned; tests/contract/test_bus_client.py fails loudly on an upgrade that
changes them.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_RESPONDERS: Final = b"NATS/1.0 503"
# How late it may be noticed that a time is up. A timer for each request would cost more than that.
_LOOK_EVERY_S: Final = 0.01


class _Question:
    """What waits for replies. wanted_n: with so many it ends; None: only when its time is up.

    ends_at_s: when that is, by the loop's clock.
    """

    __slots__ = ("ended", "ends_at_s", "has_nobody", "replies", "wanted_n")

    def __init__(self, wanted_n: int | None, ends_at_s: float, ended: asyncio.Future[None]) -> None:
        self.wanted_n = wanted_n
        self.ends_at_s = ends_at_s
        self.ended = ended
        self.replies: list[bytes] = []
        self.has_nobody = False

    def hear(self, data: bytes, headers: bytes | None) -> None:
        """Take a reply in, or the server's word that nobody listens."""
        if headers and headers.startswith(_NO_RESPONDERS):
            self.has_nobody = True
            self.end()
            return
        self.replies.append(data)
        if len(self.replies) == self.wanted_n:
            self.end()

    def end(self) -> None:
        """Wait no longer."""
        if not self.ended.done():
            self.ended.set_result(None)


class BusClient(Client):
    """A connection of the bus. Call `listen` when it is connected."""

    def __init__(self) -> None:
        super().__init__()
        self._questions: dict[bytes, _Question] = {}
        self._numbers = count(1)
        self._looking: asyncio.TimerHandle | None = None
        self._inbox = b""
        self._inbox_sid = 0

    async def listen(self) -> None:
        """Subscribe to the inbox that all replies come to."""
        self._inbox = f"{self.new_inbox()}.".encode()
        self._inbox_sid = (await self.subscribe(f"{self._inbox.decode()}*"))._id  # noqa: SLF001 - see the module

    async def ask(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        wanted_n: int | None = 1,
    ) -> list[bytes]:
        """Send a request and return its replies: wanted_n, or as many as come in time.

        subject: as fleetcast.subjects makes it; neither it nor the headers are looked at again.
        Raises nats-py's NoRespondersError; TimeoutError for no reply at all; and
        ConnectionClosedError and MaxPayloadError, for what was certainly not sent.
        """
        loop = asyncio.get_running_loop()
        question = _Question(wanted_n, loop.time() + timeout_s, loop.create_future())
        number = b"%d" % next(self._numbers)
        self._questions[number] = question
        if self._looking is None:
            self._looking = loop.call_later(_LOOK_EVERY_S, self._end_overdue)
        try:
            await self._send(subject, self._inbox + number, payload, _header_block(headers))
            await question.ended
        finally:
            del self._questions[number]
        if question.has_nobody:
            raise nats.errors.NoRespondersError
        if not question.replies:
            raise nats.errors.TimeoutError
        return question.replies

    async def connection_lost(self) -> None:
        """Wait no longer for several replies. Call it when the connection has been closed.

        A request for one reply goes on waiting: its caller will have to find out next who has acted
        on it, and until its time is up the server may be back.
        """
        for question in self._questions.values():
            if question.wanted_n != 1:
                question.end()

    def _end_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for question in self._questions.values():
            if question.ends_at_s <= now_s:
                question.end()
        again = self._questions and loop.call_later(_LOOK_EVERY_S, self._end_overdue)
        self._looking = again or None

    async def _send(self, subject: str, reply: bytes, payload: bytes, headers: bytes) -> None:
        size = len(headers) + len(payload)
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        if size > self.max_payload:  # the server would close the connection
            raise nats.errors.MaxPayloadError
        await self._send_command(
            b"HPUB %b %b %d %d\r\n%b%b\r\n"
            % (subject.encode(), reply, len(headers), size, headers, payload)
        )
        if self._flush_queue and self._flush_queue.empty():
            await self._flush_pending()

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Hand a reply over to whoever waits for it. It is never refused: reading would end."""
        if sid != self._inbox_sid:
            await super()._process_msg(sid, subject, reply, data, headers)
        elif question := self._questions.get(subject[len(self._inbox) :]):
            question.hear(data, headers)


def _header_block(headers: Mapping[str, str] | None) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in (headers or {}).items()])
    return f"NATS/1.0\r\n{lines}\r\n".encode()
