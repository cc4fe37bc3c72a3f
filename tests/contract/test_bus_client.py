"""nats-py calls what the bus's client replaces of it, and no reply makes the client deaf."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import nats.errors
import pytest
from nats.aio.client import Client

from lambdas.bus_client import BusClient
from tests.bus_parts import listener
from tests.eventually import eventually
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: NatsProcess) -> AsyncIterator[BusClient]:
    client = BusClient()
    await client.connect(server.url)
    await client.listen()
    yield client
    await client.close()


@contextlib.asynccontextmanager
async def odd_listener(url: str, odd: bytes) -> AsyncIterator[None]:
    """Listen to `odd.a` without a client, and answer with these bytes; %b is where to."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)

    async def answer() -> None:
        while line := await reader.readline():
            if line.startswith(b"HMSG"):
                writer.write(odd % line.split()[3])

    writer.write(b'CONNECT {"headers":true,"verbose":false}\r\nSUB odd.a 1\r\nPING\r\n')
    while await reader.readline() != b"PONG\r\n":
        pass
    answering = asyncio.create_task(answer())
    try:
        yield
    finally:
        writer.close()
        await answering


def _with_headers(headers: bytes, data: bytes) -> bytes:
    size = len(headers) + len(data)
    return b"HPUB %%b %d %d\r\n%b\r\n" % (len(headers), size, headers + data)


@pytest.mark.parametrize(
    "odd",
    [
        _with_headers(b"X", b"odd"),
        _with_headers(b"NATS/1.0", b"odd"),
        _with_headers(b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"odd"),
        _with_headers(b"NATS/1.0 404 \xff\r\n\r\n", b"odd"),
        b"PUB %b \xff 3\r\nodd\r\n",
    ],
)
async def test_a_reply_that_cannot_be_read_whole_makes_nobody_deaf(
    server: NatsProcess, client: BusClient, odd: bytes
) -> None:
    async with odd_listener(server.url, odd), listener(server.url):
        assert await client.ask("odd.a", b"", timeout_s=5) == [b"odd"]
        assert await client.ask("ask.a", b"next", timeout_s=5) == [b"next"]


async def test_a_server_that_says_no_responders_in_more_words_is_understood(
    server: NatsProcess, client: BusClient
) -> None:
    odd = _with_headers(b"NATS/1.0 503 No Responders \xff\r\nX: y\r\n\r\n", b"")
    async with odd_listener(server.url, odd):
        with pytest.raises(nats.errors.NoRespondersError):
            await client.ask("odd.a", b"", timeout_s=5)


async def test_a_reply_that_comes_too_late_is_nobodys(
    server: NatsProcess, client: BusClient
) -> None:
    async with listener(server.url, silent=True) as heard:
        with pytest.raises(nats.errors.TimeoutError):
            await client.ask("ask.a", b"", timeout_s=0.02)
        (late,) = heard
        asking = asyncio.create_task(client.ask("ask.b", b"", timeout_s=5))
        await eventually(lambda: asyncio.sleep(0, len(heard) == 2))
        await late.respond(b"late")
        await heard[1].respond(b"in time")
        assert await asking == [b"in time"]


async def test_what_is_called_off_leaves_nothing_behind(
    server: NatsProcess, client: BusClient
) -> None:
    async with listener(server.url, silent=True) as heard:
        asking = asyncio.create_task(client.ask("ask.a", b"", timeout_s=5))
        await eventually(lambda: asyncio.sleep(0, heard))
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
    assert not client._questions  # noqa: SLF001 - what would grow


async def test_nats_py_has_the_private_parts_that_are_used(client: BusClient) -> None:
    parameters = {
        name: list(inspect.signature(getattr(Client, name)).parameters)
        for name in ("_process_msg", "_send_command", "_flush_pending")
    }
    assert parameters == {
        "_process_msg": ["self", "sid", "subject", "reply", "data", "headers"],
        "_send_command": ["self", "cmd", "priority"],
        "_flush_pending": ["self", "force_flush"],
    }
    assert isinstance(client._flush_queue, asyncio.Queue)  # noqa: SLF001 - this is the pin
    assert isinstance((await client.subscribe("x"))._id, int)  # noqa: SLF001 - this is the pin
