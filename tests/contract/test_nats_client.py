"""nats-py calls what the agent's client replaces of it, and the replacement reads the same."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import nats
import nats.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from fleetcast import messages
from fleetcast.agent.nats_client import AgentClient, Delivery
from tests.nats_process import NatsProcess
from tests.settled_client import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_tokens = st.from_regex(r"\A[A-Za-z0-9-]{1,20}\Z")
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


def read_headers(lines: bytes) -> dict[str, str]:
    return Delivery(AgentClient(), b"ec2.a", b"", b"NATS/1.0\r\n" + lines, b"").headers


@given(st.dictionaries(_tokens, _values, max_size=6))
def test_headers_are_read_as_nats_py_reads_them(headers: dict[str, str]) -> None:
    raw = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"
    ours = read_headers(raw)
    theirs = Client._parse_header_lines(raw)  # noqa: SLF001 - what it is compared with
    assert ours.keys() == theirs.keys()
    assert {name: value.split() for name, value in ours.items()} == {
        name: value.split() for name, value in theirs.items()
    }


@given(st.binary(max_size=100))
def test_no_header_bytes_break_it(raw: bytes) -> None:
    read_headers(raw)


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
    received: asyncio.Queue[Delivery] = asyncio.Queue()
    agent = AgentClient()
    await agent.connect(server.url)
    address = urlsplit(server.url)
    _, sender = await asyncio.open_connection(address.hostname, address.port)
    try:
        await agent.hear("ec2.*", received.put_nowait)
        await settled(agent)
        after = b"PUB ec2.a 5\r\nafter\r\n"
        sender.write(b'CONNECT {"headers":true,"verbose":false}\r\n' + odd + after)
        async with asyncio.timeout(5):
            # The odd one too: it has used up a token, which has to be counted.
            assert (await received.get()).data == b""
            assert (await received.get()).data == b"after"
    finally:
        sender.close()
        await agent.close()


async def test_a_message_that_is_not_taken_makes_nobody_deaf(server: NatsProcess) -> None:
    taken: asyncio.Queue[bytes] = asyncio.Queue()

    def take(message: Delivery) -> None:
        if message.data == b"bad":
            raise RuntimeError("no")
        taken.put_nowait(message.data)

    agent = AgentClient()
    await agent.connect(server.url)
    try:
        await agent.hear("ec2.a", take)
        for data in (b"bad", b"good"):
            await agent.publish("ec2.a", data)
        async with asyncio.timeout(5):
            assert await taken.get() == b"good"
    finally:
        await agent.close()


async def test_a_request_is_heard_with_its_headers_and_answered_without(
    server: NatsProcess,
) -> None:
    sent = messages.LaunchHeaders(
        launch_id="r-0123456789abcdef0", attempt=2, expires_at_ms=5, sent_at_ms=4, traceparent="00"
    )
    heard: asyncio.Queue[Delivery] = asyncio.Queue()
    agent = AgentClient()
    await agent.connect(server.url)
    requester = await nats.connect(server.url)
    try:
        await agent.hear("ec2.a", heard.put_nowait, queue="workers")
        await settled(agent)
        asking = asyncio.create_task(
            requester.request("ec2.a", b"hello", timeout=5, headers=sent.encode())
        )
        message = await heard.get()
        await message.respond(b"answer")
        reply = await asking
    finally:
        await requester.close()
        await agent.close()
    assert messages.LaunchHeaders.decode(message.headers) == sent
    assert (message.subject, message.data, message.reply) == ("ec2.a", b"hello", reply.subject)
    assert reply.data == b"answer"
    assert reply.headers is None  # nats-py would send the request's own ones back


async def test_an_answer_that_the_server_would_not_take_leaves_the_connection_alone(
    tmp_path: Path,
) -> None:
    async with NatsProcess(tmp_path, "max_payload: 1024") as small:
        agent = AgentClient()
        await agent.connect(small.url)
        try:
            with pytest.raises(nats.errors.MaxPayloadError):
                await agent.answer(b"_INBOX.a", b"x" * 1025)
            await agent.answer(b"_INBOX.a", b"x" * 1024)
            await settled(agent)
        finally:
            await agent.close()


async def test_an_answer_on_a_closed_connection_is_an_error(server: NatsProcess) -> None:
    agent = AgentClient()
    await agent.connect(server.url)
    await agent.close()
    with pytest.raises(nats.errors.ConnectionClosedError):
        await agent.answer(b"_INBOX.a", b"")


async def test_nats_py_has_the_private_parts_that_are_used(server: NatsProcess) -> None:
    parameters = {
        name: list(inspect.signature(getattr(Client, name)).parameters)
        for name in ("_process_msg", "_remove_sub", "_send_command", "_flush_pending")
    }
    assert parameters == {
        "_process_msg": ["self", "sid", "subject", "reply", "data", "headers"],
        "_remove_sub": ["self", "sid", "max_msgs"],
        "_send_command": ["self", "cmd", "priority"],
        "_flush_pending": ["self", "force_flush"],
    }
    client = await nats.connect(server.url)
    try:
        last_sid = client._sid  # noqa: SLF001 - this is the pin
        assert isinstance(client._flush_queue, asyncio.Queue)  # noqa: SLF001 - this is the pin
        assert (await client.subscribe("ec2.a"))._id == last_sid + 1  # noqa: SLF001 - this is the pin
    finally:
        await client.close()
