"""The functions' side of NATS against a real server: how a request may end, and no other way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import nkeys  # type: ignore[import-untyped] # it ships no types
import pytest

from lambdas.bus import Bus, CredentialsUnreadable, NoAnswer, NoResponders, Unreachable
from lambdas.settings import Region
from tests.bus_parts import BUS_NAME, REGION, Clock, bus_to, closing, listener
from tests.captured_logs import captured_logs
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.silent_wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


CREDENTIALS = """
-----BEGIN NATS USER JWT-----
eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.e30.c2lnbmVk
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


def bus_with_secret(url: str, read: Callable[[str], str]) -> Bus:
    secret = "nats"  # noqa: S105 - its name
    region = Region(name=REGION, nats_url=url, nats_credentials_secret=secret)
    return Bus({REGION: region}, read)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


# --- how a request ends --------------------------------------------------------------------


async def test_a_reply_is_returned_as_it_was_sent(server: NatsProcess) -> None:
    async with listener(server.url) as heard, closing(bus_to(server.url)) as bus:
        reply = await bus.ask(REGION, "ask.a", b"hello", timeout_s=5, headers=lambda: {"K": "v"})
    assert reply == b"hello"
    assert heard[0].headers == {"K": "v"}


async def test_the_first_of_several_replies_is_returned(server: NatsProcess) -> None:
    async with contextlib.AsyncExitStack() as listeners:
        for _ in range(5):
            await listeners.enter_async_context(listener(server.url))
        async with closing(bus_to(server.url)) as bus:
            asked = (bus.ask(REGION, "ask.a", b"%d" % one, timeout_s=5) for one in range(50))
            assert await asyncio.gather(*asked) == [b"%d" % one for one in range(50)]


async def test_nobody_listening_is_told_apart_from_silence(server: NatsProcess) -> None:
    async with closing(bus_to(server.url)) as bus:
        with pytest.raises(NoResponders):
            await bus.ask(REGION, "ask.a", b"", timeout_s=5)


async def test_nobody_is_told_apart_from_nobody_yet_on_a_new_connection(
    server: NatsProcess,
) -> None:
    async def nobody_after_somebody_was_heard(bus: Bus) -> bool:
        with pytest.raises(NoResponders) as nobody:
            await bus.ask(REGION, "nobody.asks", b"", timeout_s=5)
        return nobody.value.heard_lately

    async with closing(bus_to(server.url)) as bus:
        assert not await nobody_after_somebody_was_heard(bus)
        async with listener(server.url):
            await bus.ask(REGION, "ask.a", b"", timeout_s=5)
        assert await nobody_after_somebody_was_heard(bus)
        await server.kill()
        await server.start()
        assert not await nobody_after_somebody_was_heard(bus)


async def test_a_listener_that_says_nothing_leaves_it_unknown(server: NatsProcess) -> None:
    async with listener(server.url, silent=True) as heard, closing(bus_to(server.url)) as bus:
        with pytest.raises(NoAnswer):
            await bus.ask(REGION, "ask.a", b"", timeout_s=0.05)
        assert len(heard) == 1


async def test_a_server_killed_during_a_request_leaves_it_unknown(server: NatsProcess) -> None:
    async with listener(server.url, silent=True) as heard, closing(bus_to(server.url)) as bus:
        asking = asyncio.create_task(bus.ask(REGION, "ask.a", b"", timeout_s=1))
        await eventually(lambda: asyncio.sleep(0, heard))
        await server.kill()
        with pytest.raises(NoAnswer):
            await asking


async def test_a_server_that_is_down_is_unreachable(server: NatsProcess) -> None:
    await server.kill()
    with pytest.raises(Unreachable, match=rf"{REGION}: can.t connect to NATS: connection refused$"):
        await bus_to(server.url).ask(REGION, "ask.a", b"", timeout_s=60)


async def test_a_port_that_accepts_and_says_nothing_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"nats://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(Unreachable, match="Timeout"):
            await bus_to(url).ask(REGION, "ask.a", b"", timeout_s=60)


async def test_a_crowd_that_waits_for_a_mute_region_tries_it_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        bus = bus_to(f"nats://127.0.0.1:{mute.getsockname()[1]}")
        crowd = (bus.ask(REGION, "ask.a", b"", timeout_s=60) for _ in range(5))
        ends = await asyncio.gather(*crowd, return_exceptions=True)
        assert [type(end) for end in ends] == [Unreachable] * 5
        mute.settimeout(0)
        mute.accept()[0].close()
        with pytest.raises(BlockingIOError):
            mute.accept()


async def test_a_request_larger_than_the_server_takes_is_certainly_not_sent(
    tmp_path: Path,
) -> None:
    async with (
        NatsProcess(tmp_path, "max_payload: 1024") as small,
        closing(bus_to(small.url)) as bus,
    ):
        with pytest.raises(Unreachable, match="can't be sent"):
            await bus.ask(REGION, "ask.a", b"x" * 1025, timeout_s=5)
        # Its headers count as well.
        with pytest.raises(Unreachable, match="can't be sent"):
            await bus.ask(REGION, "ask.a", b"x" * 1020, timeout_s=5, headers=lambda: {"K": "v"})


# --- who may ask ---------------------------------------------------------------------------


async def test_a_server_that_wants_credentials_is_unreachable_without(tmp_path: Path) -> None:
    async with NatsProcess(tmp_path, "authorization { token: secret }") as closed:
        with pytest.raises(Unreachable, match="can't connect"):
            await bus_to(closed.url).ask(REGION, "ask.a", b"", timeout_s=5)


@pytest.mark.parametrize(
    "secret", ["", "not a credentials file", CREDENTIALS.format(seed="SUAGARBAGE")]
)
async def test_a_secret_that_holds_no_credentials_makes_the_region_unreachable(
    tmp_path: Path, secret: str
) -> None:
    # The server sends a nonce to sign only when it knows users by their keys.
    config = f"authorization {{ users = [{{ nkey: {user_key()[1]} }}] }}"
    async with NatsProcess(tmp_path, config) as closed:
        with pytest.raises(Unreachable) as refused:
            await bus_with_secret(closed.url, lambda _: secret).ask(
                REGION, "ask.a", b"", timeout_s=5
            )
    assert "SUAGARBAGE" not in str(refused.value)


async def test_wrong_credentials_make_the_region_unreachable(tmp_path: Path) -> None:
    config = f"authorization {{ users = [{{ nkey: {user_key()[1]} }}] }}"
    wrong = CREDENTIALS.format(seed=user_key()[0])
    async with NatsProcess(tmp_path, config) as closed:
        with pytest.raises(Unreachable, match="can't connect"):
            await bus_with_secret(closed.url, lambda _: wrong).ask(
                REGION, "ask.a", b"", timeout_s=5
            )


async def test_a_secret_that_cannot_be_read_makes_the_region_unreachable() -> None:
    def fails(name: str) -> str:
        raise CredentialsUnreadable(f"secret {name} can't be read: AccessDenied")

    with pytest.raises(Unreachable, match="secret nats can't be read: AccessDenied"):
        await bus_with_secret("nats://127.0.0.1:1", fails).ask(REGION, "ask.a", b"", timeout_s=5)


async def test_secrets_that_are_read_slowly_keep_no_region_from_being_reached(
    server: NatsProcess,
) -> None:
    names = ("a", "b", "c")
    regions = {
        name: Region(name=name, nats_url=server.url, nats_credentials_secret=name) for name in names
    }
    ours = CREDENTIALS.format(seed=user_key()[0])

    def read_slowly(_: str) -> str:
        time.sleep(1)
        return ours

    async with listener(server.url), closing(Bus(regions, read_slowly)) as bus:
        asks = (bus.ask(name, "ask.a", name.encode(), timeout_s=5) for name in names)
        assert await asyncio.gather(*asks) == [b"a", b"b", b"c"]


async def test_a_secret_that_is_never_read_makes_the_region_unreachable() -> None:
    hung = threading.Event()

    def hangs(_: str) -> str:
        hung.wait(20)
        return ""

    try:
        with pytest.raises(Unreachable, match="secret nats can't be read: no answer"):
            await bus_with_secret("nats://127.0.0.1:1", hangs).ask(
                REGION, "ask.a", b"", timeout_s=60
            )
    finally:
        hung.set()


async def test_a_bus_that_is_closed_while_it_connects_leaves_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        bus = bus_to(f"nats://127.0.0.1:{mute.getsockname()[1]}")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await bus.ask(REGION, "ask.a", b"", timeout_s=60)
        mute.settimeout(5)
        connection = mute.accept()[0]
        await bus.close()
        connection.settimeout(0)
        assert connection.recv(1024) == b"", "it is closed"
        connection.close()


async def test_a_subject_that_is_not_allowed_is_no_lack_of_room_and_stands_in_the_log(
    tmp_path: Path,
) -> None:
    config = (
        "authorization { default_permissions: { publish: { deny: 'ask.>' } },"
        " users: [{ user: anybody, password: none }] }\nno_auth_user: anybody"
    )
    with captured_logs("lambdas.bus") as logs:
        async with NatsProcess(tmp_path, config) as server, closing(bus_to(server.url)) as bus:
            with pytest.raises(NoAnswer):
                await bus.ask(REGION, "ask.a", b"", timeout_s=0.2)
    (line,) = logs.fields("NATS error")
    assert line["region"] == REGION
    assert "permissions violation" in str(line["why"])


def user_key() -> tuple[str, str]:
    """Return a new user's seed and public key."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode(), nkeys.from_seed(seed).public_key.decode()


# --- the connection ------------------------------------------------------------------------


async def test_requests_side_by_side_share_one_connection(server: NatsProcess) -> None:
    async with listener(server.url), closing(bus_to(server.url)) as bus:
        asks = [bus.ask(REGION, f"ask.{n}", str(n).encode(), timeout_s=5) for n in range(50)]
        assert await asyncio.gather(*asks) == [str(n).encode() for n in range(50)]
        # One inbox for each connection of that name.
        inboxes = await server.subscriptions(BUS_NAME)
        assert sum(map(len, inboxes.values())) == 1


async def test_a_server_that_was_replaced_between_two_requests_answers_the_second(
    server: NatsProcess,
) -> None:
    async with closing(bus_to(server.url)) as bus:
        with pytest.raises(NoResponders):
            await bus.ask(REGION, "ask.a", b"", timeout_s=5)
        await server.kill()
        await server.start()
        async with listener(server.url):
            assert await bus.ask(REGION, "ask.a", b"again", timeout_s=5) == b"again"


def test_a_server_that_was_replaced_while_the_function_stood_still_answers_the_next_request(
    tmp_path: Path,
) -> None:
    server = NatsProcess(tmp_path)
    with asyncio.Runner() as outside, asyncio.Runner() as function:
        outside.run(server.start())
        bus = bus_to(server.url)
        for _ in range(3):
            with pytest.raises(NoResponders):
                function.run(bus.ask(REGION, "ask.a", b"", timeout_s=5))
            outside.run(server.kill())
            outside.run(server.start())
        function.run(bus.close())
        outside.run(server.kill())


async def test_a_connection_that_fell_silent_while_idle_is_replaced_before_it_is_used(
    server: NatsProcess,
) -> None:
    clock = Clock()
    port = int(server.url.rpartition(":")[2])
    async with Wire(port) as wire, listener(server.url) as heard:
        async with closing(bus_to(wire.url, clock)) as bus:
            await bus.ask(REGION, "ask.a", b"first", timeout_s=5)
            wire.go_silent()
            clock.now_s += 31
            assert await bus.ask(REGION, "ask.a", b"second", timeout_s=5) == b"second"
        assert [message.data for message in heard] == [b"first", b"second"]
        assert wire.connections == 2


async def test_a_connection_is_proven_after_a_request_without_an_answer(
    server: NatsProcess,
) -> None:
    port = int(server.url.rpartition(":")[2])
    async with Wire(port) as wire, listener(server.url), closing(bus_to(wire.url)) as bus:
        await bus.ask(REGION, "ask.a", b"", timeout_s=5)
        wire.go_silent()
        with pytest.raises(NoAnswer):
            await bus.ask(REGION, "ask.a", b"", timeout_s=0.05)
        assert await bus.ask(REGION, "ask.a", b"second", timeout_s=5) == b"second"


async def test_an_idle_connection_that_works_is_kept(server: NatsProcess) -> None:
    clock = Clock()
    port = int(server.url.rpartition(":")[2])
    async with (
        Wire(port) as wire,
        listener(server.url),
        closing(bus_to(wire.url, clock)) as bus,
    ):
        for _ in range(3):
            await bus.ask(REGION, "ask.a", b"", timeout_s=5)
            clock.now_s += 3600
        assert wire.connections == 1


async def test_nothing_is_delivered_after_its_caller_has_given_up(server: NatsProcess) -> None:
    async with closing(bus_to(server.url)) as bus:
        with pytest.raises(NoResponders):
            await bus.ask(REGION, "ask.a", b"", timeout_s=5)
        await server.kill()
        for number in range(3):
            with pytest.raises((Unreachable, NoAnswer)):
                await bus.ask(REGION, "ask.a", b"stale %d" % number, timeout_s=0.1)
        await server.start()
        async with listener(server.url) as heard:
            await bus.ask(REGION, "ask.a", b"fresh", timeout_s=5)
            assert [message.data for message in heard] == [b"fresh"]


async def test_headers_are_made_once_the_connection_stands(server: NatsProcess) -> None:
    order: list[str] = []

    def read(name: str) -> str:
        order.append(f"connecting with {name}")
        return CREDENTIALS.format(seed=user_key()[0])

    def headers() -> dict[str, str]:
        order.append("sending")
        return {}

    async with listener(server.url), closing(bus_with_secret(server.url, read)) as bus:
        await bus.ask(REGION, "ask.a", b"", timeout_s=5, headers=headers)
    assert order == ["connecting with nats", "sending"]
