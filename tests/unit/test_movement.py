"""How scenarios move: the same for the same seed and time, within bounds, without jumps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.local.aws_fakes import Movement, load_scenario, plausible_scenario
from fleetcast.local.aws_fakes.capacity_blocks import SOLD_AS_BLOCKS

if TYPE_CHECKING:
    from pathlib import Path

NOW_S = 1_780_000_000.0
DAY_S = 86_400.0

times = st.floats(0, 4e9)
movements = st.builds(
    Movement,
    seed=st.integers(),
    swing=st.floats(0, 0.99),
    period_s=st.floats(60, 1e6),
    price_change_s=st.floats(60, 1e6),
)


@given(movements, st.text(), times)
def test_a_number_stays_within_its_swing_and_is_what_it_was(
    movement: Movement, name: str, at_s: float
) -> None:
    factor = movement.factor(name, at_s)
    assert 1 - movement.swing <= factor <= 1 + movement.swing
    assert movement.factor(name, at_s) == factor


@given(movements, times)
def test_a_number_moves_without_a_jump(movement: Movement, at_s: float) -> None:
    later_s = at_s + movement.period_s / 1000
    assert abs(movement.level("x", at_s) - movement.level("x", later_s)) < 0.01


@given(movements, times, st.floats(0, 1e7))
def test_changes_cover_a_span_from_its_end_to_the_last_one_before_it(
    movement: Movement, start_s: float, length_s: float
) -> None:
    end_s = start_s + min(length_s, 100 * movement.price_change_s)
    changes = list(movement.changes("x", start_s, end_s))
    assert all(newer > older for newer, older in pairwise(changes))
    assert changes[0] <= end_s
    assert [at_s for at_s in changes if at_s <= start_s] == changes[-1:]


@given(movements, times)
def test_what_was_known_of_the_past_stays_so(movement: Movement, now_s: float) -> None:
    start_s = now_s - 20 * movement.price_change_s
    earlier = set(movement.changes("x", start_s, now_s - 5 * movement.price_change_s))
    assert earlier <= set(movement.changes("x", start_s, now_s))


@pytest.mark.parametrize("other", [Movement(seed=1), Movement(seed=2)])
def test_another_seed_is_another_course(other: Movement) -> None:
    moments = [NOW_S + hour * 3600 for hour in range(48)]
    courses = [[one.level("x", at_s) for at_s in moments] for one in (Movement(), other)]
    assert courses[0] != courses[1]


def test_a_scenario_that_was_written_to_a_file_is_read_back(tmp_path: Path) -> None:
    scenario = plausible_scenario(["us-east-1"], {"p5.48xlarge": 55.04}, movement=Movement(seed=7))
    path = tmp_path / "scenario.json"
    path.write_bytes(msgspec.json.encode(scenario))
    assert load_scenario(path) == scenario


def test_a_plausible_scenario_has_all_of_each_region_and_is_the_same_again() -> None:
    usd_per_hour = {"t3.medium": 0.0416, "p5.48xlarge": 55.04, "trn1.32xlarge": 21.5}
    regions = ("us-east-1", "eu-west-1", "ap-south-1")
    scenario = plausible_scenario(regions, usd_per_hour)
    assert plausible_scenario(regions, usd_per_hour) == scenario
    for region in regions:
        assert scenario.spot_placement[region].keys() == usd_per_hour.keys()
        assert scenario.prices[region].keys() == usd_per_hour.keys()
        assert {name for name in usd_per_hour if SOLD_AS_BLOCKS.match(name)} == set(
            scenario.capacity_blocks[region]
        )
        for name, lowest in usd_per_hour.items():
            prices = scenario.prices[region][name]
            assert prices.on_demand_usd_per_hour is not None
            assert lowest <= prices.on_demand_usd_per_hour <= lowest * 1.16
    assert len({str(scenario.prices[region]["t3.medium"]) for region in regions}) == len(regions)
