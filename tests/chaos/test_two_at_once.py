"""Reconcile and a caller that resolves its launch, at the same time and in the worst order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tests.chaos.faults import Freeze, FunctionDied
from tests.chaos.post import LAUNCH
from tests.chaos.world import LEFT_S, Count
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.chaos.world import World

LARGE = Count(1, 50)


async def half_decided(world: World) -> str:
    """Leave a large launch that two nodes hold, half of it recorded; return its token.

    Of two holders, the one that whoever resolves the launch would not choose is recorded.
    """
    for number in range(20):
        token = f"token-{number}"
        function = await world.function()
        function.faults.at("before transact_write_items", function.faults.die, times=(4,))
        world.post.fates(LAUNCH, "twice")
        assert isinstance(await world.launch(function, LARGE, token=token), FunctionDied)
        (reservation,) = [one for one in world.reservations() if one.client_token == token]
        records = world.fleet.instances_by_id(reservation.account_id, reservation.instance_ids)
        on_the_other = (await world.inventories())["n2"].keys()
        if any(one.node == "n1" and one.instance_id in on_the_other for one in records):
            return token
        world.clock.move(LEFT_S)
        await world.terminate(await world.launched(await world.function(), LARGE, token=token))
    raise AssertionError("never both, and n1 first")


async def test_what_a_caller_is_told_of_outlives_a_reconcile_that_began_before(
    world: World,
) -> None:
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=1_000)
    await world.know_the_nodes()
    token = await half_decided(world)
    world.clock.move(LEFT_S)
    reconciler, freeze = await world.reconciler(), Freeze()
    reconciler.faults.at("after batch_get_item", freeze.hold)
    run = asyncio.create_task(reconciler.reconcile())
    await eventually(partial(is_reached, freeze))
    await world.launched(await world.function(), LARGE, token=token)
    freeze.let_go()
    assert not (await run).errors
    await world.settle("reconcile and a caller resolve a half-decided launch")


async def test_two_that_resolve_at_once_tell_the_same(world: World) -> None:
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=20)
    await world.know_the_nodes()
    dying = await world.function()
    dying.faults.at("after ask RunInstances", dying.faults.die)
    world.post.fates(LAUNCH, "twice")
    await world.launch(dying, Count(1, 3), token="once")  # noqa: S106 - a ClientToken
    world.clock.move(LEFT_S)
    functions = [await world.function() for _ in range(3)]
    freezes = [Freeze() for _ in functions]
    # All have located it before any of them writes.
    for function, freeze in zip(functions, freezes, strict=True):
        function.faults.at("after gather LocateLaunch", freeze.hold)
    launches = [
        asyncio.create_task(world.launched(one, Count(1, 3), token="once"))  # noqa: S106 - a ClientToken
        for one in functions
    ]
    for freeze in freezes:
        await eventually(partial(is_reached, freeze))
    for freeze in freezes:
        freeze.let_go()
    answers = await asyncio.gather(*launches)
    assert len(set(answers)) == 1
    await world.settle("three resolve one launch at once")


async def is_reached(freeze: Freeze) -> bool:
    return freeze.reached.is_set()
