"""Agents that are killed or stopped at the worst moments."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, NamedTuple

from fleetcast.errors import InsufficientInstanceCapacity, InternalError
from tests.chaos.faults import FunctionDied
from tests.chaos.walks import walker
from tests.chaos.world import LEFT_S, ONE, REGION, Count, side_by_side
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.chaos.world import World


ONCE = "once"


class Death(NamedTuple):
    """At which side of which write an agent dies, while it is asked for how many."""

    side: Literal["before", "after"]
    write: int
    wanted: Count


# The second write of what is held is its commit.
DEATHS = [
    Death(side, write, count)
    for side in ("before", "after")
    for write, count in ((1, ONE), (1, Count(2, 2)), (2, Count(2, 2)))
]


async def test_an_agent_that_dies_at_its_journal_keeps_what_it_may_have_promised(
    world: World,
) -> None:
    """Before the journal nothing was promised; after it, the promise only wasn't heard."""
    await world.start_region("r0")
    world.share_server(*(f"r{at}" for at in range(1, len(DEATHS))))
    dying = await side_by_side(
        *(
            world.start_nodes(f"n{at}", region=f"r{at}", dies=death.side, dies_at_write=death.write)
            for at, death in enumerate(DEATHS)
        )
    )
    await world.know_the_nodes()

    async def launch_and_die(at: int) -> None:
        region, count = f"r{at}", DEATHS[at].wanted
        first = await world.function(region)
        launch = asyncio.create_task(world.launch(first, count, token=region))
        await dying[at].died()
        await dying[at].start()
        # Found there, asked for again, or unknown: but never lost, and never twice.
        await launch

    await side_by_side(*map(launch_and_die, range(len(DEATHS))))
    world.clock.move(LEFT_S)
    again = [await world.function(f"r{at}") for at in range(len(DEATHS))]
    found = await side_by_side(
        *(
            world.launched(function, DEATHS[at].wanted, token=f"r{at}")
            for at, function in enumerate(again)
        )
    )
    census = await world.settle("kill -9 before and after the journal")
    assert census.holders() == {one: {f"n{at}"} for at, ids in enumerate(found) for one in ids}


async def test_an_agent_that_dies_between_its_reply_and_the_boot_boots_when_it_is_back(
    world: World,
) -> None:
    await world.start_region()
    node = await world.start_nodes("n1", boots=False)
    await world.know_the_nodes()
    some = await world.launched(await world.function(), Count(1, 2))
    more = await world.launched(await world.function(), Count(2, 2))
    await node.kill()
    assert not (await world.census()).guests["n1"]
    await node.start()
    census = await world.settle("kill -9 between reply and boot")
    assert census.guests["n1"] == some | more


async def test_an_agent_that_dies_in_a_crowd_loses_nothing_it_has_accepted(world: World) -> None:
    """And the other one takes the rest: nobody is refused while there is room."""
    await world.start_region()
    dying = await world.start_nodes("n1", slots=20, dies="after", dies_at_write=3)
    await world.start_nodes("n2", slots=20)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(20)]
    crowd = [
        asyncio.create_task(world.launch(one, token=f"{at}")) for at, one in enumerate(functions)
    ]
    await dying.died()
    await dying.start()
    await side_by_side(*crowd)
    assert not world.tally.refused
    world.clock.move(LEFT_S)
    await side_by_side(*(world.launched(one, token=f"{at}") for at, one in enumerate(functions)))
    census = await world.settle("kill -9 in a crowd")
    assert len(census.holders()) == 20


async def test_an_agent_that_loses_its_journal_keeps_what_is_on_record_and_nothing_else(
    world: World,
) -> None:
    """Its guests run on, and the driver says what they are."""
    await world.start_region()
    process = await world.start_nodes("n1", slots=4)
    await world.know_the_nodes()
    kept = await world.launched(await world.function(), Count(2, 2))
    async with walker(world, REGION) as nobodys:
        await nobodys.launch(1)
        world.tally.accepted.remove(frozenset(nobodys.placed))  # no record says so
    await world.quiet()
    await process.kill()
    for lost in world.nodes["n1"].state_dir.glob("journal.sqlite*"):
        lost.unlink()
    await process.start()
    before = await world.inventories()
    assert {one: report.state for one, report in before["n1"].items()} == dict.fromkeys(
        (*kept, *nobodys.placed), "running"
    )
    assert await world.launched(await world.function()), "there is room for one more"
    refused = await world.launch(await world.function())
    assert isinstance(refused, InsufficientInstanceCapacity), "what was taken in takes its room"
    census = await world.settle("an agent loses its journal")
    assert kept <= census.holders().keys()
    assert not census.holders().keys() & nobodys.placed.keys()


async def test_an_agent_that_is_stopped_past_expiry_launches_nothing_when_it_goes_on(
    world: World,
) -> None:
    """What was sent to it meanwhile is in its socket, and has expired."""
    world.accept_timeout_s = 0.3
    await world.start_region()
    stopped = await world.start_nodes("n1", slots=4)
    await world.start_nodes("n2", slots=4)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(6)]
    stopped.stop()
    answers = await side_by_side(
        *(world.launch(one, token=f"{at}") for at, one in enumerate(functions))
    )
    assert not world.tally.refused  # n2 has room, and what n1 has nobody knows
    stopped.go_on()
    census = await world.settle("SIGSTOP past expiry, SIGCONT")
    assert not census.holders_on("n1")
    assert len(census.holders_on("n2")) == sum(isinstance(one, frozenset) for one in answers)
    again = await side_by_side(
        *(world.launched(one, token=f"{at}") for at, one in enumerate(functions))
    )
    assert [one for one in answers if isinstance(one, frozenset)] == [
        one for one, before in zip(again, answers, strict=True) if isinstance(before, frozenset)
    ]


async def test_an_agent_that_is_stopped_with_what_it_has_accepted_is_unknown_and_never_gone(
    world: World,
) -> None:
    await world.start_region()
    stopped = await world.start_nodes("n1", slots=4)
    await world.know_the_nodes()
    ids = await world.launched(await world.function(), Count(1, 3))
    stopped.stop()
    reconciler = await world.reconciler()
    world.clock.move(LEFT_S)
    summary = await reconciler.reconcile()
    (region,) = summary.regions
    assert (region.silent_nodes_n, region.unknown_instances_n) == (1, 3)
    assert set((await world.described()).values()) <= {"pending", "running"}
    stopped.go_on()

    async def known() -> int:
        (region,) = (await reconciler.reconcile()).regions
        return region.unknown_instances_n

    await eventually(known, lambda unknown_n: not unknown_n)
    census = await world.settle("SIGSTOP with instances")
    assert census.guests["n1"] == ids


async def test_a_launch_on_a_node_that_is_silent_stays_unknown_until_it_answers(
    world: World,
) -> None:
    await world.start_region()
    stopped = await world.start_nodes("n1", slots=4)
    await world.know_the_nodes()
    dying = await world.function()
    dying.faults.at("after ask RunInstances", dying.faults.die)
    assert isinstance(await world.launch(dying, token=ONCE), FunctionDied)
    stopped.stop()
    world.clock.move(LEFT_S)
    await world.start_nodes("n2", slots=4)
    assert isinstance(await world.launch(await world.function(), token=ONCE), InternalError)
    summary = await world.know_the_nodes()
    assert (summary.launches_resolved_n, summary.undecided_launches_n) == (0, 1)
    stopped.go_on()
    await world.inventories()
    ids = await world.launched(await world.function(), token=ONCE)
    census = await world.settle("SIGSTOP with a launch that its function left")
    assert census.holders() == {one: {"n1"} for one in ids}
