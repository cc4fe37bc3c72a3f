"""A wire between an agent and its server that the test can cut.

What is sent while it is cut waits and arrives when it is mended, as TCP has it: late.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK_BYTES = 65_536


class Wire:
    """Forwards connections to a NATS server. Cut it from any thread, mend it on its own loop."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._to_server = asyncio.Event()
        self._to_agent = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self.mend()
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing through."""
        self._to_agent.clear()
        self.cut_off_answers()

    def cut_off_answers(self) -> None:
        """Let nothing through to the server: the agent hears, and isn't heard."""
        self._to_server.clear()

    def mend(self) -> None:
        """Let everything through, and what has waited first."""
        self._to_server.set()
        self._to_agent.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._target.hostname, self._target.port)
        for source, sink, is_open in (
            (reader, there[1], self._to_server),
            (there[0], writer, self._to_agent),
        ):
            pump = asyncio.create_task(_pump(source, sink, is_open))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_open: asyncio.Event
) -> None:
    try:
        with contextlib.suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                await is_open.wait()
                sink.write(chunk)
                await sink.drain()
    finally:
        sink.close()
        with contextlib.suppress(OSError):
            await sink.wait_closed()
