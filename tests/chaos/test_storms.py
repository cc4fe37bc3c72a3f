"""Crowds: as many requests as there are slots, or more, all at the same moment."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from fleetcast.local.nats_server import nats_cluster
from tests.chaos.walks import walker
from tests.chaos.world import REGION, side_by_side

if TYPE_CHECKING:
    from tests.chaos.census import Census
    from tests.chaos.walks import Walker
    from tests.chaos.world import World

NODES = [f"n{number}" for number in range(50)]
# From an eighth of a large host to all of a small one.
TYPES = ("t3.nano", "t3.small", "t3.medium", "t3.large", "t3.xlarge", "t3.2xlarge")


async def end_of_the_storm(world: World, case: str, storm: Walker) -> Census:
    """Take the census. What was accepted is there, where that was said, and nothing else is."""
    await world.quiet()
    census = await world.census()
    false_refusals = sum(census.free_slots(one) > 0 for one in storm.refused_types)
    world.tell(
        case,
        census,
        strays=census.holders().keys() - storm.placed.keys(),
        false_refusals=false_refusals,
    )
    assert census.holders() == {one: {at.node} for one, at in storm.placed.items()}
    assert not false_refusals
    assert not world.tally.unknown
    census.check_nodes()
    return census


@pytest.mark.parametrize("requests", [1_000, 1_500])
async def test_a_storm_fills_every_slot_and_no_more(world: World, requests: int) -> None:
    await world.start_region()
    await world.start_nodes(*NODES, slots=20)
    async with walker(world, REGION) as storm:
        await side_by_side(*map(storm.launch, range(requests)))
        census = await end_of_the_storm(world, f"storm, {requests} for 1000", storm)
    assert len(storm.placed) == 1_000
    assert census.free_slots("t3.medium") == 0


async def test_a_storm_on_a_cluster_fills_every_slot_and_no_more(world: World) -> None:
    """Its servers learn of each other's last slots too late: what they lose is found out about."""
    with nats_cluster(3) as servers:
        urls = [server.url for server in servers]
        world.regions[REGION] = urls[0]
        await world.start_nodes(*NODES, slots=20, urls=urls)
        async with walker(world, REGION) as storm:
            await side_by_side(*map(storm.launch, range(1_000)))
            census = await end_of_the_storm(world, "storm on a cluster, 1000 for 1000", storm)
        assert len(storm.placed) == 1_000
        assert census.free_slots("t3.medium") == 0
        await world.hang_up()


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_of_mixed_types_refuses_only_what_fits_nowhere(
    world: World, seed: int
) -> None:
    """All types share the same hosts, so that each acceptance takes room from all the others."""
    chance = random.Random(seed)
    await world.start_region()
    await world.start_nodes(*NODES[:12], slots=8)
    kinds = chance.choices(TYPES, k=400)
    async with walker(world, REGION) as storm:
        await side_by_side(*(storm.launch(at, kind) for at, kind in enumerate(kinds)))
        await end_of_the_storm(world, f"storm of mixed types, seed {seed}", storm)
    assert storm.refused_types


async def test_sixty_side_by_side_fill_fifty_slots_and_are_each_described_at_once(
    world: World,
) -> None:
    """And of sixty for fifty slots, ten are told that there is no room."""
    await world.start_region()
    await world.start_nodes(*NODES[:10], slots=5)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(60)]
    answers = await side_by_side(*map(world.launch, functions))
    assert sum(isinstance(one, frozenset) for one in answers) == 50
    assert world.tally.refused == 10
    census = await world.settle("60 functions for 50 slots")
    assert census.free_slots("t3.medium") == 0
    assert (await world.described()).keys() == world.tally.acknowledged
