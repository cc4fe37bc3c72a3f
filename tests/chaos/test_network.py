"""Servers that are killed under load, and nodes that are cut off in the middle of a launch."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from fleetcast.errors import InternalError, ServiceUnavailable
from tests.chaos.wire import Wire
from tests.chaos.world import LEFT_S, Count, side_by_side
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.functions import Function
    from tests.chaos.world import Answer, World


# Between two launches of one caller: a refusal takes no time at all.
_PAUSE_S = 0.05


class Cut(NamedTuple):
    """Where in a launch a wire is cut, and how."""

    point: str
    how: Callable[[Wire], None]


CUTS = [
    Cut(point, how)
    for point in ("before ask RunInstances", "before ask Commit")
    for how in (Wire.cut, Wire.cut_off_answers)
]


async def test_a_node_that_is_cut_off_while_it_holds_or_commits(world: World) -> None:
    """Two are wanted, one on each node. What waited on the wire arrives when all is over."""
    server = await world.start_region("r0")
    regions = [f"r{at}" for at in range(len(CUTS))]
    world.share_server(*regions)
    async with contextlib.AsyncExitStack() as wires:
        cut_off = [await wires.enter_async_context(Wire(server.url)) for _ in CUTS]
        for region, wire in zip(regions, cut_off, strict=True):
            urls = [server.url, wire.url]
            await world.start_nodes(f"{region}a", f"{region}b", slots=1, region=region, urls=urls)
        await world.know_the_nodes()

        async def launch(region: str, wire: Wire, cut: Cut) -> Answer:
            function = await world.function(region)
            function.faults.at(cut.point, partial(cut.how, wire))
            return await world.launch(function, Count(2, 2), token=region)

        answers = await side_by_side(*map(launch, regions, cut_off, CUTS))
        # Never a lack of room, for nobody has said so.
        assert all(isinstance(one, InternalError | ServiceUnavailable) for one in answers), answers
        world.clock.move(LEFT_S)
        for wire in cut_off:
            wire.mend()
        await world.settle("cut off while it holds or commits")
        again = [await world.function(region) for region in regions]
        await side_by_side(
            *(
                world.launched(function, Count(2, 2), token=region)
                for function, region in zip(again, regions, strict=True)
            )
        )
        (await world.census()).check()
        await world.hang_up()


async def test_a_server_that_is_killed_and_started_again_under_load(world: World) -> None:
    """While it is down nobody speaks of room; what was accepted is kept; what is unknown resolved.

    A server whose agents aren't back yet says that nobody listens, which it can't tell from having
    no room: such refusals are counted as false, and end when the agents are back.
    """
    server = await world.start_region()
    await world.start_nodes("n1", "n2", "n3", slots=60)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(8)]
    answers: dict[str, Answer] = {}
    over = asyncio.Event()

    async def keep_launching(function: Function) -> None:
        while not over.is_set():
            token = f"token-{len(answers)}"
            answers[token] = InternalError("under way")
            answers[token] = await world.launch(function, token=token)
            await asyncio.sleep(_PAUSE_S)

    async def more_are_launched() -> None:
        before_n = len(world.tally.accepted)
        await eventually(lambda: asyncio.sleep(0, len(world.tally.accepted) > before_n + 8))

    load = [asyncio.create_task(keep_launching(function)) for function in functions]
    for number in (1, 2):
        await more_are_launched()
        await server.kill()
        await in_vain(world, number)
        await server.start()
    await world.inventories()  # all of them are back
    refused_n = world.tally.refused
    await more_are_launched()
    over.set()
    await side_by_side(*load)
    assert world.tally.refused <= refused_n + len(functions)  # those that were under way
    world.clock.move(LEFT_S)
    census = await world.settle("nats-server killed under load", false_refusals=refused_n)
    assert census.free_slots("t3.medium") > 0
    again = await world.function()
    for token, answer in answers.items():
        if isinstance(answer, InternalError | ServiceUnavailable):
            await world.launched(again, token=token)
    (await world.census()).check()


async def in_vain(world: World, number: int) -> None:
    """Wait until so many launches have ended in doubt, or could not be asked for."""
    await eventually(lambda: asyncio.sleep(0, world.tally.unknown >= number))
