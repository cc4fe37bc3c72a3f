"""Nodes whose clocks are wrong, by as much as is allowed and by more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import FunctionDied
from tests.chaos.world import LEFT_S, REGION, Count, side_by_side
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.chaos.world import World

ONCE = "once"
SKEWS_MS = (-400, 400)
# More than the allowance, and more than a request is valid for.
TOO_FAR_MS = 2_000


async def test_clocks_that_differ_by_less_than_is_allowed_change_nothing(world: World) -> None:
    """Also not when a function dies with instances held on both."""
    await world.start_region()
    await side_by_side(
        *(world.start_nodes(f"n{at}", slots=6, skew_ms=skew) for at, skew in enumerate(SKEWS_MS))
    )
    await world.know_the_nodes()
    dying = await world.function()
    dying.faults.at("before ask Commit", dying.faults.die)
    answer = await world.launch(dying, Count(2, 2), token=ONCE)
    assert isinstance(answer, FunctionDied)
    functions = [await world.function() for _ in range(3)]
    await side_by_side(*(world.launched(one, Count(2, 3)) for one in functions))
    world.clock.move(LEFT_S)
    await world.launched(await world.function(), Count(2, 2), token=ONCE)
    await world.settle("clocks 800 ms apart")


@pytest.mark.parametrize("skew_ms", [-TOO_FAR_MS, TOO_FAR_MS], ids=["behind", "ahead"])
async def test_a_clock_that_is_further_off_takes_no_launch_and_is_reported(
    world: World, skew_ms: int
) -> None:
    await world.start_region()
    wrong = await world.start_nodes("wrong", slots=4, skew_ms=skew_ms)
    await world.start_nodes("right", slots=4)
    await world.know_the_nodes()
    function = await world.function()

    async def launched() -> bool:
        # The wrong one may be asked so often that the region counts as failing.
        return isinstance(await world.launch(function), frozenset)

    for _ in range(4):
        await eventually(launched)
    assert not world.tally.refused
    answer = await world.launch(function)
    (region,) = (await world.know_the_nodes()).regions
    assert abs(region.clock_skew_ms) == pytest.approx(TOO_FAR_MS, abs=300)
    (record,) = [one for one in world.fleet.nodes(REGION) if one.node == "wrong"]
    assert record.clock_skew_ms == pytest.approx(skew_ms, abs=300)
    # It says why it takes nothing: when asked, or by having set itself aside.
    assert "clock of node wrong" in f"{answer} {record.closed}"
    census = await world.settle(f"clock {skew_ms} ms off")
    assert not census.holders_on("wrong")
    await wrong.kill()
    await wrong.start()
    await world.launched(function)
    (await world.census()).check_nodes()
