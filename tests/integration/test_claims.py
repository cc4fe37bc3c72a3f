"""What a launch asks of all agents of a region, of real ones' like over a real server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import EndpointConnectionError
from nats.aio.client import Client

from fleetcast import messages
from fleetcast.subjects import RegionAction, region_subject
from lambdas.claims import Claims
from tests.bus_parts import REGION, bus_to, closing
from tests.nats_process import NatsProcess
from tests.settled_client import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping
    from pathlib import Path

    from nats.aio.msg import Msg

    from lambdas.bus import Bus

LAUNCH = "r-00000001"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def agents(url: str, delays_s: Mapping[str, float]) -> AsyncIterator[None]:
    """Answer every request to the region in the name of each node, so much later."""
    client = Client()
    await client.connect(url, allow_reconnect=False)

    async def answer(message: Msg) -> None:
        began_s = 0.0
        for node, delay_s in sorted(delays_s.items(), key=lambda one: one[1]):
            await asyncio.sleep(delay_s - began_s)
            began_s = delay_s
            report = messages.InstanceReport(
                instance_id=f"i-{len(node):08x}",
                launch_id=LAUNCH,
                attempt=1,
                instance_type="t3.medium",
                state="running",
            )
            reply = messages.InstancesReply(node=node, instances=(report,))
            await message.respond(messages.encode(reply))

    await client.subscribe(region_subject(REGION, RegionAction.LOCATE_LAUNCH), cb=answer)
    await client.subscribe(region_subject(REGION, RegionAction.CANCEL_LAUNCH), cb=answer)
    await settled(client)
    try:
        yield
    finally:
        await client.close()


def claims_over(
    bus: Bus,
    known_nodes: Callable[[str], Collection[str]],
    *,
    expires_at_ms: Callable[[], int] | None = None,
) -> Claims:
    return Claims(
        bus, LAUNCH, known_nodes=known_nodes, sleep=asyncio.sleep, expires_at_ms=expires_at_ms
    )


async def test_a_node_that_nobody_knows_yet_takes_no_known_ones_turn_to_be_heard(
    server: NatsProcess,
) -> None:
    async with agents(server.url, {"new": 0, "slower": 0.1}), closing(bus_to(server.url)) as bus:
        claims = claims_over(bus, lambda _: {"slower"})
        located = await claims.locate(REGION)
        assert located.heard_all
        assert {one.node for one in located.there} == {"new", "slower"}
        assert await claims.cancel(REGION, ["i-00000001"], attempt=1)


async def test_a_region_whose_nodes_cannot_be_looked_up_is_asked_but_not_heard_whole(
    server: NatsProcess,
) -> None:
    def fails(_: str) -> Collection[str]:
        raise EndpointConnectionError(endpoint_url="http://dynamodb")

    async with agents(server.url, {"n1": 0}), closing(bus_to(server.url)) as bus:
        claims = claims_over(bus, fails)
        located = await claims.locate(REGION)
        assert not located.heard_all
        assert {one.node for one in located.there} == {"n1"}
        assert not await claims.cancel(REGION, ["i-00000001"], attempt=1)
    async with closing(bus_to(server.url)) as bus:
        assert not (await claims_over(bus, fails).locate(REGION)).heard_all, "nobody listens"


async def test_an_order_is_in_time_however_long_its_nodes_are_looked_up(
    server: NatsProcess,
) -> None:
    happened: list[str] = []

    def looked_up(_: str) -> Collection[str]:
        happened.append("looked up")
        return {"n1"}

    def expiry_ms() -> int:
        happened.append("order made")
        return 1

    async with agents(server.url, {"n1": 0}), closing(bus_to(server.url)) as bus:
        claims = claims_over(bus, looked_up, expires_at_ms=expiry_ms)
        await claims.cancel(REGION, ["i-00000001"], attempt=1)
    assert happened == ["looked up", "order made"]


async def test_looking_up_the_nodes_of_one_region_lets_others_be_heard(
    server: NatsProcess,
) -> None:
    started, may_go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(_: str) -> Collection[str]:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result(timeout=5)
        return {"n1"}

    async with agents(server.url, {"n1": 0}), closing(bus_to(server.url)) as bus:
        looking = asyncio.create_task(claims_over(bus, slow).locate(REGION))
        await started.wait()
        assert (await claims_over(bus, lambda _: {"n1"}).locate(REGION)).heard_all
        may_go_on.set()
        assert (await looking).heard_all
