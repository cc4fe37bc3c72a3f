"""Messages that are lost, doubled, reordered, or so late that nobody remembers them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from fleetcast.subjects import NodeAction, RegionAction
from tests.chaos.faults import FunctionDied
from tests.chaos.post import LAUNCH, Fate, Post, named
from tests.chaos.world import LEFT_S, ONE, OTHER_REGION, Count, side_by_side

if TYPE_CHECKING:
    from tests.chaos.functions import Function
    from tests.chaos.world import World

ONCE = "once"


async def deliver_late_at(world: World, function: Function, point: str) -> list[str]:
    """Have what was kept back arrive when a function passes a point. Return what is answered."""
    loop = asyncio.get_running_loop()
    connections = await world.outside()
    answers: list[str] = []

    def deliver() -> None:
        late = world.post.deliver_late(connections)
        answers.extend(asyncio.run_coroutine_threadsafe(late, loop).result(timeout=20))

    function.faults.at(point, deliver)
    return answers


async def test_a_launch_request_that_goes_wrong_still_gives_one_launch(world: World) -> None:
    world.accept_timeout_s = 0.5
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=20)
    await world.know_the_nodes()
    fates: list[Fate] = ["lost", "answer lost", "late", "twice"]
    posts: list[Post] = []

    async def launched(fate: Fate, count: Count) -> frozenset[str]:
        post = Post()
        posts.append(post)
        post.fates(LAUNCH, fate)
        return await world.launched(await world.function(post=post), count)

    ids = await side_by_side(
        *(launched(fate, count) for fate in fates for count in (ONE, Count(2, 3)))
    )
    for post in posts:
        answers = await post.deliver_late(await world.outside())
        assert not [one for one in answers if "accepted" in one]
    census = await world.settle("launch requests lost, late and twice, answers lost")
    assert census.holders().keys() == frozenset().union(*ids)


async def test_a_request_that_arrives_after_its_cancellation_launches_nothing(
    world: World,
) -> None:
    """By the node's clock it hasn't expired yet: only the fence keeps it out."""
    world.accept_timeout_s = 0.5
    await world.start_region()
    await world.start_nodes("n1", slots=4, skew_ms=-400)
    await world.know_the_nodes()
    function = await world.function()
    world.post.fates(LAUNCH, "late")
    answers = await deliver_late_at(world, function, "after gather CancelLaunch")
    ids = await world.launched(function)
    (answer,) = answers
    assert "node_fault" in answer
    census = await world.settle("reordered: cancellation, then request")
    assert census.holders() == {one: {"n1"} for one in ids}
    (reservation,) = census.reservations
    assert reservation.story
    assert [one.outcome for one in reservation.story.asks] == [
        "no_answer",
        "not_found",
        "released",
        "accepted",
    ]


async def test_a_cancellation_that_is_late_does_not_undo_what_its_launch_was_resolved_to(
    world: World,
) -> None:
    """The request arrives after the search for it, before the cancellation; its function dies."""
    world.accept_timeout_s = 0.5
    await world.start_region()
    await world.start_nodes("n1", slots=4, skew_ms=-400)
    await world.know_the_nodes()
    function = await world.function()
    late = {LAUNCH, RegionAction.CANCEL_LAUNCH}
    world.post.fate = lambda action: "late" if action in late else "delivered"
    answers = await deliver_late_at(world, function, "after gather LocateLaunch")
    function.faults.at("after gather CancelLaunch", function.faults.die)
    assert isinstance(await world.launch(function, token=ONCE), FunctionDied)
    (answer,) = answers
    assert "accepted" in answer
    world.post.fate = lambda _: "delivered"
    world.clock.move(LEFT_S)
    ids = await world.launched(await world.function(), token=ONCE)
    await world.post.deliver_late(await world.outside())
    census = await world.settle("a late cancellation of what was resolved")
    assert census.holders() == {one: {"n1"} for one in ids}
    assert [record.attempt for record in census.records.values()] == [1]


@pytest.mark.parametrize("action", [NodeAction.COMMIT, NodeAction.RELEASE])
async def test_an_order_that_is_late_changes_nothing_any_more(
    world: World, action: NodeAction
) -> None:
    """Of the first region, the launch has too little; of the second, enough."""
    await world.start_region()
    await world.start_region(OTHER_REGION)
    await world.start_nodes("n1", slots=2 if action is NodeAction.COMMIT else 1)
    await world.start_nodes("m1", slots=4, region=OTHER_REGION)
    await world.know_the_nodes()
    world.post.fates(action, "late", "late", "late")
    answer = await world.launch(await world.function(), Count(2, 2), token=ONCE)
    world.clock.move(LEFT_S)
    await world.post.deliver_late(await world.outside())
    await world.settle(f"{action} late")
    ids = await world.launched(await world.function(), Count(2, 2), token=ONCE)
    assert answer == ids or not isinstance(answer, frozenset)
    (await world.census()).check()


async def test_everything_said_twice_is_said_once(world: World) -> None:
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=8)
    await world.know_the_nodes()
    world.post.fate = lambda _: "twice"
    await world.launched(await world.function(), Count(2, 3))
    await world.launched(await world.function(), Count(1, 3))
    await world.launch(await world.function(), Count(40, 40))
    world.post.fate = lambda _: "delivered"
    await world.settle("everything twice")


@pytest.mark.parametrize("seed", [1])
async def test_everything_said_again_in_any_order_when_all_is_over_changes_nothing(
    world: World, seed: int
) -> None:
    """Also the orders that hold for ever, of launches that were resolved."""
    chance = random.Random(seed)
    world.accept_timeout_s = 0.5
    await world.start_region()
    await world.start_nodes("n1", "n2", "n3", slots=8)
    await world.know_the_nodes()
    fates: list[Fate] = ["lost", "answer lost", "late"]
    world.post.fate = lambda _: chance.choice(fates) if chance.random() < 0.3 else "delivered"
    counts = [ONE, Count(2, 2), Count(1, 3), Count(3, 3)] * 2
    functions = [await world.function() for _ in counts]
    await side_by_side(
        *(
            world.launch(function, count, token=f"{at}")
            for at, (function, count) in enumerate(zip(functions, counts, strict=True))
        )
    )
    world.post.fate = lambda _: "delivered"
    before = await world.settle(f"lost, late and answers lost, seed {seed}")
    sent = [*world.post.sent]
    chance.shuffle(sent)
    assert {named(letter.subject) for letter in sent} >= {LAUNCH, RegionAction.CANCEL_LAUNCH}
    await world.post.deliver(sent, await world.outside())
    after = await world.settle(f"everything again, seed {seed}")
    assert after.holders() == before.holders()
