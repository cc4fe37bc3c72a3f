"""The metadata service as HTTP: one request a connection, and nobody can hold on to one.

(On the guest's side of a socket, each connection costs a process.)
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple

import h11

from fleetcast.agent.guest_data.metadata_answers import Answer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

_WITHIN_S: Final = 10.0
# More are turned away unread: of one guest, which its host pays for with a process each, and of
# all guests of a bridge.
_MAX_OF_A_SENDER: Final = 16
_MAX_CONNECTIONS: Final = 512
_CHUNK_BYTES: Final = 16_384


class Request(NamedTuple):
    """What is asked. headers: names in lower case; of several of a name, the last.

    sender: its IPv4 address; None on a socket that is a file.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    sender: str | None


class Listener:
    """Answers at a socket until it is closed."""

    def __init__(self, respond: Callable[[Request], Answer]) -> None:
        self._respond = respond
        self._talking: dict[asyncio.Task[None], str | None] = {}
        self._server: asyncio.Server | None = None

    async def open(self, bound: socket.socket) -> None:
        """Listen at a socket that has its address."""
        self._server = await asyncio.start_server(self._begin, sock=bound)

    async def close(self) -> None:
        """Listen no longer, and break off what is being said."""
        if self._server is not None:
            self._server.close()
        for task in self._talking:
            task.cancel()
        await asyncio.gather(*self._talking, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        sender = peer[0] if isinstance(peer, tuple) else None
        of_sender = sum(one == sender for one in self._talking.values())
        if of_sender >= _MAX_OF_A_SENDER or len(self._talking) >= _MAX_CONNECTIONS:
            writer.close()
            return
        talk = _answer_one_request(reader, writer, sender=sender, respond=self._respond)
        task = asyncio.create_task(talk)
        self._talking[task] = sender
        task.add_done_callback(self._talking.pop)


async def _answer_one_request(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    sender: str | None,
    respond: Callable[[Request], Answer],
) -> None:
    """Read a request, answer it and close, all within 10 s, whatever the other side does."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            connection = h11.Connection(h11.SERVER)
            try:
                request = await _read_request(connection, reader, sender)
            except h11.RemoteProtocolError as problem:
                given = Answer(problem.error_status_hint, b"")
            else:
                if request is None:
                    return
                given = respond(request)
            writer.write(_encode(connection, given))
            await writer.drain()
    except (OSError, TimeoutError):
        writer.transport.abort()  # it has gone, or is too slow to be waited for
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, sender: str | None
) -> Request | None:
    """Return the head of a request; None if there was none. A body is of no use, and not read."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_CHUNK_BYTES))
        elif isinstance(event, h11.Request):
            headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            target = event.target.decode("latin-1")
            return Request(event.method.decode(), target, headers, sender)
        else:
            return None


def _encode(connection: h11.Connection, given: Answer) -> bytes:
    phrase = HTTPStatus(given.status).phrase
    body = given.body if given.status == HTTPStatus.OK else f"{given.status} - {phrase}\n".encode()
    headers = {
        "Content-Type": "text/plain",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **given.headers,
    }
    events = (
        h11.Response(status_code=given.status, reason=phrase, headers=list(headers.items())),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    return b"".join(connection.send(event) or b"" for event in events)
