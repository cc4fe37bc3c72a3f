"""What users of similar systems have reported, where no other test keeps it out: see README.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import nats

from fleetcast.errors import InsufficientInstanceCapacity
from fleetcast.subjects import LAUNCH_QUEUE_GROUP, launch_subject
from tests.chaos.world import OTHER_REGION, REGION, Count, side_by_side
from tests.eventually import eventually
from tests.settled_client import settled

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from tests.chaos.world import World

ONCE = "once"
ODD_REGION = "ap-south-1"


async def test_a_crowd_with_one_token_gets_one_launch(world: World) -> None:
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=20)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(8)]
    answers = await side_by_side(
        *(world.launched(function, Count(2, 3), token=ONCE) for function in functions)
    )
    assert len(set(answers)) == 1
    census = await world.settle("8 functions with one token")
    assert census.holders().keys() == answers[0]


async def test_a_crowd_that_spills_over_into_the_next_region_has_one_of_each(
    world: World,
) -> None:
    """Launches of three: what a region has left over is too little for the last ones."""
    await world.start_region()
    await world.start_region(OTHER_REGION)
    await world.start_nodes("n1", "n2", slots=7)
    await world.start_nodes("m1", slots=9, region=OTHER_REGION)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(9)]
    answers = await side_by_side(*(world.launch(one, Count(3, 3)) for one in functions))
    launched = [one for one in answers if isinstance(one, frozenset)]
    # Who holds two keeps others from finding three, so that fewer may fit than could.
    assert 1 <= len(launched) <= 7
    false_refusals = min(world.tally.refused, 7 - len(launched))
    census = await world.settle("9 launches of 3 for 14 and 9 slots", false_refusals=false_refusals)
    assert census.holders().keys() == frozenset().union(*launched)
    assert {record.region for record in census.records.values()} == {REGION, OTHER_REGION}
    # Nobody is left holding anything: there is room for as many as there ever was.
    while isinstance(await world.launch(functions[0], Count(3, 3)), frozenset):
        pass
    assert (await world.census()).free_slots("t3.medium") == 14 + 9 - 3 * 7


async def test_a_region_that_is_dry_and_one_that_answers_nonsense_leave_the_third(
    world: World,
) -> None:
    world.accept_timeout_s = 0.5
    for region in (REGION, OTHER_REGION, ODD_REGION):
        await world.start_region(region)
    await world.start_nodes("m1", slots=4, region=OTHER_REGION)
    await world.know_the_nodes()
    odd = await nats.connect(world.regions[ODD_REGION])

    async def answer(message: Msg) -> None:
        await message.respond(b'{"v": 1, "type": "InsufficientQuotaForVibes"}')

    subject = launch_subject(ODD_REGION, "t3.medium")
    await odd.subscribe(subject, queue=LAUNCH_QUEUE_GROUP, cb=answer)
    await settled(odd)
    functions = [await world.function() for _ in range(3)]
    await side_by_side(*map(world.launched, functions))
    await odd.close()
    census = await world.settle("one region dry, one that nobody understands")
    assert {record.region for record in census.records.values()} == {OTHER_REGION}


async def test_room_that_joins_while_requests_are_refused_is_found_by_the_next(
    world: World,
) -> None:
    await world.start_region()
    await world.start_nodes("n1", slots=1)
    await world.know_the_nodes()
    functions = [await world.function() for _ in range(4)]
    await world.launched(functions[0])
    has_joined = asyncio.Event()
    refused_later: list[object] = []

    async def keep_launching(number: int) -> None:
        answer: object = None
        while not isinstance(answer, frozenset):
            joined = has_joined.is_set()
            answer = await world.launch(functions[number])
            assert isinstance(answer, frozenset | InsufficientInstanceCapacity)
            if joined and not isinstance(answer, frozenset):
                refused_later.append(answer)

    callers = [asyncio.create_task(keep_launching(number)) for number in range(4)]
    await eventually(lambda: asyncio.sleep(0, world.tally.refused >= 8))
    await world.start_nodes("n2", slots=4)
    has_joined.set()
    await side_by_side(*callers)
    assert not refused_later
    await world.settle("room joins while requests are refused")
