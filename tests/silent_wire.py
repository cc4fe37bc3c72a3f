"""A network that can lose a connection without telling either end."""

from __future__ import annotations

import asyncio
from typing import Self


class Wire:
    """A TCP proxy that can go silent without a word, as a NAT gateway drops an idle connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.go_silent()
        self._server.close()
        for writer in self._writers:
            writer.close()

    def go_silent(self) -> None:
        """Carry nothing more over the connections that there are."""
        for pump in self._pumps:
            pump.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        to_server = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, to_server[1]]
        for source, sink in ((reader, to_server[1]), (to_server[0], writer)):
            self._pumps.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65_536):
            sink.write(chunk)
            await sink.drain()
