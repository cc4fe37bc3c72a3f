"""A request to all who listen in a region, against a real server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from lambdas.bus import NoAnswer, NoResponders, Unreachable
from tests.bus_parts import BUS_NAME, REGION, bus_to, closing, listener
from tests.eventually import eventually
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


async def test_all_who_listen_are_heard_and_nobody_is_waited_for_beyond_those_expected(
    server: NatsProcess,
) -> None:
    async with (
        listener(server.url),
        listener(server.url),
        listener(server.url),
        closing(bus_to(server.url)) as bus,
    ):
        replies = await bus.gather(REGION, "ask.a", b"hello", timeout_s=60, expected=3)
        assert replies == [b"hello"] * 3


@pytest.mark.parametrize("expected", [None, 3])
async def test_what_has_come_when_the_time_is_up_is_returned(
    server: NatsProcess, expected: int | None
) -> None:
    async with (
        listener(server.url),
        listener(server.url),
        listener(server.url, silent=True) as heard,
        closing(bus_to(server.url)) as bus,
    ):
        replies = await bus.gather(REGION, "ask.a", b"x", timeout_s=0.3, expected=expected)
        assert replies == [b"x", b"x"]
        assert len(heard) == 1


async def test_nobody_listening_to_a_request_to_all_is_told_at_once(server: NatsProcess) -> None:
    async with closing(bus_to(server.url)) as bus:
        with pytest.raises(NoResponders):
            await bus.gather(REGION, "ask.a", b"", timeout_s=60)


async def test_a_request_to_all_that_nobody_answers_leaves_it_unknown(server: NatsProcess) -> None:
    async with listener(server.url, silent=True), closing(bus_to(server.url)) as bus:
        with pytest.raises(NoAnswer):
            await bus.gather(REGION, "ask.a", b"", timeout_s=0.05)


async def test_a_server_killed_while_replies_are_awaited_leaves_it_unknown(
    server: NatsProcess,
) -> None:
    async with listener(server.url, silent=True) as heard, closing(bus_to(server.url)) as bus:
        gathering = asyncio.create_task(bus.gather(REGION, "ask.a", b"", timeout_s=60))
        await eventually(lambda: asyncio.sleep(0, heard))
        await server.kill()
        with pytest.raises(NoAnswer):
            await gathering


async def test_replies_that_came_before_the_server_was_killed_are_returned(
    server: NatsProcess,
) -> None:
    async with listener(server.url) as heard, closing(bus_to(server.url)) as bus:
        gathering = asyncio.create_task(bus.gather(REGION, "ask.a", b"x", timeout_s=60))
        await eventually(lambda: asyncio.sleep(0, heard))
        # An answer to a later request comes after those to the earlier one.
        await bus.ask(REGION, "ask.b", b"", timeout_s=5)
        await server.kill()
        assert await gathering == [b"x"]


async def test_a_request_to_all_of_a_server_that_is_down_is_unreachable(
    server: NatsProcess,
) -> None:
    await server.kill()
    with pytest.raises(Unreachable, match="can't connect"):
        await bus_to(server.url).gather(REGION, "ask.a", b"", timeout_s=60)


async def test_a_request_to_all_that_the_server_would_not_take_is_certainly_not_sent(
    tmp_path: Path,
) -> None:
    async with (
        NatsProcess(tmp_path, "max_payload: 1024") as small,
        closing(bus_to(small.url)) as bus,
    ):
        with pytest.raises(Unreachable, match="can't be sent"):
            await bus.gather(REGION, "ask.a", b"x" * 1025, timeout_s=5)


async def test_an_inbox_is_given_up_once_the_replies_are_in(server: NatsProcess) -> None:
    async with listener(server.url), closing(bus_to(server.url)) as bus:
        for _ in range(3):
            await bus.gather(REGION, "ask.a", b"x", timeout_s=60, expected=1)
        await bus.ask(REGION, "ask.a", b"", timeout_s=5)
        # What is left is ask's own.
        inboxes = await server.subscriptions(BUS_NAME)
        assert sum(map(len, inboxes.values())) == 1
