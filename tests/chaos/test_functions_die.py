"""Functions that die, or are frozen, between each pair of their steps."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fleetcast.errors import InternalError, ServiceUnavailable
from tests.chaos.faults import Freeze, FunctionDied
from tests.chaos.world import LEFT_S, ONE, OTHER_REGION, Answer, Count, side_by_side
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.chaos.world import World

# So late a hold has surely lapsed.
LEASE_S = 16.0


async def points_of(world: World, count: Count) -> int:
    """Launch once without a fault; return how many points that passes."""
    function = await world.function()
    await world.launched(function, count)
    return len(function.faults.passed)


async def dies(world: World, point: int, token: str, count: Count) -> None:
    """Have a function launch, and die at that point."""
    answer = await launch_until(world, point, token, count)
    assert isinstance(answer, FunctionDied), answer


async def launch_until(world: World, point: int, token: str, count: Count) -> Answer:
    """Have a function launch, and die at that point if it comes so far."""
    function = await world.function()
    function.faults.die_at(point)
    return await world.launch(function, count, token=token)


@pytest.mark.parametrize("count", [ONE, Count(2, 3)], ids=str)
async def test_a_function_that_dies_anywhere_leaves_a_launch_that_becomes_one(
    world: World, count: Count
) -> None:
    """Half of the launches are resolved by their tokens, the others by reconcile."""
    await world.start_region()
    await world.start_nodes("n1", "n2", "n3", slots=60)
    await world.know_the_nodes()
    points = range(await points_of(world, count))
    await side_by_side(
        *(dies(world, at, f"{who}-{at}", count) for at in points for who in ("token", "run"))
    )
    world.clock.move(LEFT_S)
    await again(world, [f"token-{at}" for at in points], count)
    await world.settle(f"function dies, {count.least} to {count.most}")
    await again(world, [f"run-{at}" for at in points], count)
    (await world.census()).check()


async def again(world: World, tokens: list[str], count: Count) -> None:
    """Launch again with these tokens. Each must have a launch, and one of its own."""
    functions = [await world.function() for _ in tokens]
    found = await side_by_side(
        *(
            world.launched(function, count, token=token)
            for token, function in zip(tokens, functions, strict=True)
        )
    )
    assert len(frozenset().union(*found)) == sum(map(len, found))


@pytest.mark.parametrize("least", [1, 40])
async def test_a_function_that_dies_between_the_transactions_of_a_large_launch(
    world: World, least: int
) -> None:
    """It is written down in two transactions, and decided in two."""
    count = Count(least, 50)
    await world.start_region()
    await world.start_nodes("n1", "n2", "n3", slots=120)
    await world.know_the_nodes()
    tokens = [f"{after}-{who}" for after in (1, 3) for who in ("token", "run")]
    for token in tokens:
        function = await world.function()
        after = int(token[0])
        function.faults.at("after transact_write_items", function.faults.die, times=(after,))
        answer = await world.launch(function, count, token=token)
        assert isinstance(answer, FunctionDied), answer
    world.clock.move(LEFT_S)
    await again(world, tokens[::2], count)
    await world.settle(f"function dies between transactions, {count.least} to {count.most}")
    await again(world, tokens[1::2], count)
    (await world.census()).check()


async def test_a_function_that_dies_while_its_first_region_falls_short(world: World) -> None:
    """Two fit in the first region, three are wanted: what it holds there must go."""
    await world.start_region()
    await world.start_region(OTHER_REGION)
    await world.start_nodes("n1", "n2", slots=1)
    await world.start_nodes("m1", slots=100, region=OTHER_REGION)
    await world.know_the_nodes()
    tokens: list[str] = []
    # How often the first region is asked differs, and so does the length of the way.
    while isinstance(
        await launch_until(world, len(tokens), f"{len(tokens)}", Count(3, 3)), FunctionDied
    ):
        tokens.append(str(len(tokens)))
        world.clock.move(LEASE_S)
        await eventually(partial(nothing_is_held, world))
    assert len(tokens) > 16
    census = await world.settle("function dies, first region falls short")
    assert census.free_slots("t3.medium") >= 2
    assert {record.region for record in census.records.values()} == {OTHER_REGION}
    await again(world, tokens, Count(3, 3))
    (await world.census()).check()


async def test_a_function_that_is_frozen_until_its_launch_is_resolved_changes_nothing(
    world: World,
) -> None:
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=20)
    await world.know_the_nodes()
    reconciler = await world.reconciler()
    where = ("after ask RunInstances", "before ask Commit", "before transact_write_items")
    frozen: list[tuple[Freeze, asyncio.Task[Answer]]] = []
    for point in where:
        function, freeze = await world.function(), Freeze()
        function.faults.at(point, freeze.hold, times=(2 if "transact" in point else 1,))
        launch = asyncio.create_task(world.launch(function, Count(2, 2), token=point))
        await eventually(partial(is_reached, freeze))
        frozen.append((freeze, launch))
    world.clock.move(LEFT_S)
    summary = await reconciler.reconcile()
    assert summary.launches_resolved_n == len(where)
    for freeze, _ in frozen:
        freeze.let_go()
    for answer in await side_by_side(*(launch for _, launch in frozen)):
        assert isinstance(answer, InternalError | ServiceUnavailable)
    await again(world, [*where], Count(2, 2))
    await world.settle("function frozen until its launch is resolved")


async def nothing_is_held(world: World) -> bool:
    inventories = await world.inventories()
    return not any(one.held is True for held in inventories.values() for one in held.values())


async def is_reached(freeze: Freeze) -> bool:
    return freeze.reached.is_set()
