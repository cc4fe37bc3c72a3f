"""nats-py calls what the agent's client replaces of it, and the replacement does the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from fleetcast import messages
from fleetcast.agent.nats_client import AgentClient
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.msg import Msg

_tokens = st.from_regex(r"\A[A-Za-z0-9-]{1,20}\Z")
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@given(st.dictionaries(_tokens, _values, max_size=6))
def test_headers_are_read_as_nats_py_reads_them(headers: dict[str, str]) -> None:
    raw = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"
    ours = AgentClient._parse_header_lines(raw)  # noqa: SLF001 - this is the pin
    theirs = Client._parse_header_lines(raw)  # noqa: SLF001 - this is the pin
    assert ours.keys() == theirs.keys()
    assert {name: value.split() for name, value in ours.items()} == {
        name: value.split() for name, value in theirs.items()
    }


@given(st.binary(max_size=100))
def test_no_header_bytes_break_it(raw: bytes) -> None:
    AgentClient._parse_header_lines(raw)  # noqa: SLF001 - this is the pin


def _with_headers(headers: bytes) -> bytes:
    return b"HPUB ec2.a %d %d\r\n%b\r\n" % (len(headers), len(headers), headers)


@pytest.mark.parametrize(
    "odd",
    [
        _with_headers(b"X"),
        _with_headers(b"NATS/1.0"),
        _with_headers(b"NATS/1.0 \xff\xff\xff\r\n\r\n"),
        _with_headers(b"NATS/1.0 503 \xff\r\n\r\n"),
        b"PUB ec2.\xff 0\r\n\r\n",
        b"PUB ec2.a \xff 0\r\n\r\n",
    ],
)
async def test_a_message_that_cannot_be_read_is_delivered_and_makes_nobody_deaf(
    server: NatsProcess, odd: bytes
) -> None:
    received: asyncio.Queue[Msg] = asyncio.Queue()
    agent = AgentClient()
    await agent.connect(server.url)
    address = urlsplit(server.url)
    _, sender = await asyncio.open_connection(address.hostname, address.port)
    try:
        await agent.subscribe("ec2.*", cb=received.put)
        await agent.flush()
        after = b"PUB ec2.a 5\r\nafter\r\n"
        sender.write(b'CONNECT {"headers":true,"verbose":false}\r\n' + odd + after)
        async with asyncio.timeout(5):
            # The odd one too: it has used up a token, which has to be counted.
            assert (await received.get()).data == b""
            assert (await received.get()).data == b"after"
    finally:
        sender.close()
        await agent.close()


async def test_what_it_replaces_is_what_nats_py_calls(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    read = AgentClient._parse_header_lines  # noqa: SLF001 - this is the pin

    def noting(raw: bytes) -> dict[str, str]:
        seen.append(raw)
        return read(raw)

    monkeypatch.setattr(AgentClient, "_parse_header_lines", staticmethod(noting))
    sent = messages.LaunchHeaders(
        launch_id="r-0123456789abcdef0", attempt=2, expires_at_ms=5, sent_at_ms=4, traceparent="00"
    )
    read_headers: list[messages.LaunchHeaders] = []
    agent = AgentClient()
    await agent.connect(server.url)
    requester = await nats.connect(server.url)

    async def answer(message: Msg) -> None:
        read_headers.append(messages.LaunchHeaders.decode(message.headers))
        await message.respond(b"answer")

    try:
        await agent.subscribe("ec2.a", cb=answer)
        await agent.flush()
        reply = await requester.request("ec2.a", b"", timeout=5, headers=sent.encode())
    finally:
        await requester.close()
        await agent.close()
    assert read_headers == [sent]
    assert len(seen) == 1
    assert reply.data == b"answer"
    assert reply.headers is None  # nats-py would send the request's own ones back
