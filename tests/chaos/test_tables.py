"""DynamoDB that throttles, that other writers are quicker at, and whose answers get lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from fleetcast.errors import EC2Error
from tests.chaos.faults import conflicting, throttled
from tests.chaos.world import LEFT_S, Count, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.world import World

COUNT = Count(2, 3)


@pytest.mark.parametrize("problem", [throttled, conflicting])
async def test_a_call_that_dynamodb_refuses_anywhere_loses_nothing_and_doubles_nothing(
    world: World, problem: Callable[[], None]
) -> None:
    """Each launch meets it at another call: before it has had its effect, and after."""
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=40)
    await world.know_the_nodes()
    points = [
        (f"{side} {call}", nth)
        for side in ("before", "after")
        for call, nth in (
            ("transact_write_items", 1),
            ("transact_write_items", 2),
            ("query", 1),
            ("query", 2),
        )
    ]
    functions = [await world.function() for _ in points]
    for function, (point, nth) in zip(functions, points, strict=True):
        function.faults.at(point, problem, times=(nth,))
    answers = await side_by_side(
        *(world.launch(function, COUNT, token=f"{at}") for at, function in enumerate(functions))
    )
    assert not world.tally.refused
    assert any(isinstance(one, frozenset) for one in answers)
    world.clock.move(LEFT_S)
    again = await side_by_side(
        *(world.launched(function, COUNT, token=f"{at}") for at, function in enumerate(functions))
    )
    for answer, ids in zip(answers, again, strict=True):
        assert answer == ids or isinstance(answer, EC2Error | ClientError)
    await world.settle(f"DynamoDB {problem.__name__}")
