"""Scores and trends against the reference numbers, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fleetcast.errors import InvalidSignal, InvalidWeights
from fleetcast.scoring import (
    DEFAULT_WEIGHTS,
    OPTIONAL_WEIGHTS,
    SCALES,
    PriceTrend,
    RegionSignals,
    SignalReadings,
    Weights,
    capacity_block_trend,
    observed_block_trend,
    price_change_per_week,
    price_trend,
    score_terms,
    simple_score,
    simple_score_of,
    weighted_score,
    with_worst_for_missing,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "scoring.json").read_text()
)

# The reference describes these series in words.
WEEKLY_COUNTS = {
    "26 bins, all 3": [3] * 26,
    "one non-empty bin only": [0] * 7 + [4] + [0] * 18,
    "weeks 0 and 1 hold 5 each, the rest 0": [5, 5] + [0] * 24,
    "weeks 24 and 25 hold 5 each, the rest 0": [0] * 24 + [5, 5],
}


def _weights(**changes: object) -> dict[str, Any]:
    return {signal: getattr(DEFAULT_WEIGHTS, signal) for signal in SCALES} | changes


# --- reference numbers ---------------------------------------------------------------------


@pytest.mark.parametrize("entry", GOLDEN["weighted_score"], ids=lambda entry: str(entry["signals"]))
def test_weighted_score_is_the_reference_one(entry: dict[str, Any]) -> None:
    assert weighted_score(RegionSignals(**entry["signals"])) == entry["score"]


@pytest.mark.parametrize("entry", GOLDEN["price_trend"], ids=lambda entry: str(entry["prices"]))
def test_price_trend_is_the_reference_one(entry: dict[str, Any]) -> None:
    expected = {key: value for key, value in entry.items() if key != "prices"}
    assert price_trend(entry["prices"]) == PriceTrend(**expected)


@pytest.mark.parametrize("entry", GOLDEN["simple_score"], ids=str)
def test_simple_score_is_the_reference_one(entry: dict[str, Any]) -> None:
    arguments = {key: value for key, value in entry.items() if key != "score"}
    assert simple_score(**arguments) == entry["score"]


@pytest.mark.parametrize(
    "entry", GOLDEN["capacity_block_trend"], ids=lambda entry: entry["weekly_counts"]
)
def test_capacity_block_trend_is_the_reference_one(entry: dict[str, Any]) -> None:
    assert capacity_block_trend(WEEKLY_COUNTS[entry["weekly_counts"]]) == entry["trend"]


def test_every_section_of_the_reference_is_used() -> None:
    assert set(GOLDEN) == {
        "note",
        "weighted_score",
        "price_trend",
        "simple_score",
        "capacity_block_trend",
    }


# --- terms ---------------------------------------------------------------------------------


def test_terms_name_every_signal_once_and_sum_to_the_score() -> None:
    signals = RegionSignals(spot_placement=0.3, queue_depth=10, running_jobs=5, gpu_utilization=80)
    terms = score_terms(signals)
    assert [term.signal for term in terms] == list(RegionSignals.__struct_fields__)
    assert round(math.fsum(term.contribution for term in terms), 4) == weighted_score(signals)


def test_a_term_shows_the_value_that_was_counted() -> None:
    gpu = next(
        term
        for term in score_terms(RegionSignals(gpu_utilization=150))
        if term.signal == "gpu_utilization"
    )
    assert (gpu.value, gpu.penalty, gpu.weight, gpu.contribution) == (100, 1, 0.15, 0.15)


# --- weights -------------------------------------------------------------------------------


def test_weights_from_a_mapping_are_used() -> None:
    weights = Weights.from_mapping(dict.fromkeys(SCALES, 0.0) | {"gpu_utilization": 1})
    assert weighted_score(RegionSignals(gpu_utilization=40), weights) == 0.4


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "0.2", None])
def test_a_weight_that_is_no_share_is_refused_by_its_key(value: object) -> None:
    with pytest.raises(InvalidWeights, match="queue_depth"):
        Weights.from_mapping(_weights(queue_depth=value))


def test_an_unknown_weight_is_refused_by_its_key() -> None:
    with pytest.raises(InvalidWeights, match="queue_length"):
        Weights.from_mapping(_weights(queue_length=0.0))


def test_an_absent_weight_is_refused_by_its_key() -> None:
    weights = _weights()
    del weights["running_jobs"]
    with pytest.raises(InvalidWeights, match="running_jobs"):
        Weights.from_mapping(weights)


def test_what_is_scored_only_on_request_may_be_absent_and_then_has_no_weight() -> None:
    six = {name: share for name, share in _weights().items() if name not in OPTIONAL_WEIGHTS}

    assert Weights.from_mapping(six) == DEFAULT_WEIGHTS
    assert {getattr(DEFAULT_WEIGHTS, name) for name in OPTIONAL_WEIGHTS} == {0}


def test_room_on_the_fleets_nodes_counts_once_it_has_weight() -> None:
    weights = Weights.from_mapping(_weights(spot_placement=0, fleet_capacity=0.25))
    room, none = RegionSignals(fleet_capacity=10), RegionSignals()

    assert weighted_score(none, weights) - weighted_score(room, weights) == 0.125
    assert weighted_score(none) == weighted_score(room)


def test_a_price_that_rises_counts_once_its_trend_has_weight() -> None:
    weights = Weights.from_mapping(_weights(spot_placement=0, spot_price_trend=0.25))
    rising, falling = RegionSignals(spot_price_trend=0.5), RegionSignals(spot_price_trend=-0.5)

    assert weighted_score(rising, weights) - weighted_score(falling, weights) == 0.125


@pytest.mark.parametrize("excess", [0.01, -0.01, 2e-6])
def test_weights_that_do_not_sum_to_one_are_refused(excess: float) -> None:
    with pytest.raises(InvalidWeights, match="sum to"):
        Weights.from_mapping(_weights(spot_placement=0.25 + excess))


def test_a_sum_that_is_off_by_rounding_is_accepted() -> None:
    weights = Weights.from_mapping(_weights(spot_placement=0.25 + 5e-7))
    assert weights.spot_placement == 0.25 + 5e-7


# --- what is not a number ------------------------------------------------------------------

NO_NUMBERS = [math.nan, math.inf, -math.inf, 10**400, True, "1", None]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize("signal", SCALES)
def test_a_signal_that_is_no_finite_number_is_refused_by_name(signal: str, value: object) -> None:
    fields: dict[str, Any] = {signal: value}
    with pytest.raises(InvalidSignal, match=signal):
        RegionSignals(**fields)


@pytest.mark.parametrize("value", [value for value in NO_NUMBERS if value is not None])
def test_a_reading_that_is_no_finite_number_is_refused_by_name(value: object) -> None:
    fields: dict[str, Any] = {"cpu_utilization": value}
    with pytest.raises(InvalidSignal, match="cpu_utilization"):
        SignalReadings(**fields)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_trends_and_the_simple_score_refuse_what_is_no_finite_number(value: float) -> None:
    with pytest.raises(InvalidSignal, match="price"):
        price_trend([1.0, value])
    with pytest.raises(InvalidSignal, match="price"):
        price_change_per_week({0.0: 1.0, 1.0: value})
    with pytest.raises(InvalidSignal, match="count of offers"):
        capacity_block_trend([1.0, value])
    with pytest.raises(InvalidSignal, match="count of offers"):
        observed_block_trend({0: 1.0, 1: value})
    with pytest.raises(InvalidSignal, match="queue_depth"):
        simple_score(value, 0, 0, 0)


@pytest.mark.parametrize("count", [-1, 3])
def test_a_count_of_missing_signals_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(InvalidSignal, match="missing_scored_signals"):
        simple_score(0, 0, 0, count)


# --- what was not read ---------------------------------------------------------------------


def test_a_region_of_which_nothing_was_read_has_the_worst_score() -> None:
    assert weighted_score(with_worst_for_missing(SignalReadings())) == 1.0


def test_what_was_read_is_kept_and_zero_is_a_reading() -> None:
    signals = with_worst_for_missing(SignalReadings(queue_depth=0, gpu_utilization=30))
    assert (signals.queue_depth, signals.gpu_utilization) == (0, 30)
    assert signals.running_jobs == SCALES["running_jobs"].worst


@pytest.mark.parametrize(
    ("readings", "status", "missing"),
    [
        ({"queue_depth": 0, "gpu_utilization": 0, "cpu_utilization": 0}, "complete", 0),
        ({"queue_depth": 0, "gpu_utilization": 0}, "partial", 0),
        ({"queue_depth": 0, "cpu_utilization": 0}, "partial", 1),
        ({"cpu_utilization": 0}, "partial", 2),
        ({"running_jobs": 0, "spot_placement": 0.5}, "unavailable", 2),
    ],
    ids=str,
)
def test_telemetry_status_and_missing_signals(
    readings: dict[str, Any], status: str, missing: int
) -> None:
    observed = SignalReadings(**readings)
    assert (observed.telemetry_status, observed.missing_scored_signals) == (status, missing)


def test_the_simple_score_of_readings_counts_what_is_missing() -> None:
    read = SignalReadings(queue_depth=3, gpu_utilization=42.5, running_jobs=2)
    assert simple_score_of(read) == 82.5
    assert simple_score_of(SignalReadings(queue_depth=5, running_jobs=0)) == 1050


def test_a_cluster_that_is_scaled_to_zero_ties_with_a_saturated_one() -> None:
    saturated = SignalReadings(
        queue_depth=3, running_jobs=2, gpu_utilization=100, cpu_utilization=100
    )
    scaled_to_zero = SignalReadings(
        queue_depth=3,
        running_jobs=2,
        not_offered=frozenset({"gpu_utilization", "cpu_utilization"}),
    )

    assert scaled_to_zero.telemetry_status == "complete"
    assert scaled_to_zero.missing_scored_signals == 0
    assert simple_score_of(scaled_to_zero) == simple_score_of(saturated)
    assert weighted_score(with_worst_for_missing(scaled_to_zero)) == weighted_score(
        with_worst_for_missing(saturated)
    )


# --- trends beyond the reference -----------------------------------------------------------


def test_a_price_that_falls_is_falling() -> None:
    assert price_trend([0.5, 0.6, 0.7]).direction == "falling"


def test_a_gentle_growth_of_capacity_blocks_is_not_clamped() -> None:
    # Weekly 10, 11, … 35: slope 1, mean 22.5, so half the span brings 13 of 22.5.
    assert capacity_block_trend(range(10, 36)) == round(13 / 22.5, 4)


def test_a_price_changes_by_time_not_by_sample() -> None:
    # All on one line, seen more often at first: a seventh of a dollar a day.
    days = (0.0, 0.1, 0.2, 0.3, 3.5)
    prices = {day * 86_400: 1 + day / 7 for day in days}

    mean = 1 + sum(days) / len(days) / 7
    assert price_change_per_week(prices) == round(1 / mean, 4)


@pytest.mark.parametrize("prices", [{}, {5.0: 1.0}, {0.0: 0.0, 1.0: 0.0}])
def test_a_price_seen_less_than_twice_has_not_changed(prices: dict[float, float]) -> None:
    assert price_change_per_week(prices) == 0


def test_days_without_a_count_are_passed_over_in_a_trend() -> None:
    daily = {day: 10.0 + day for day in range(20)}
    gaps = {day: count for day, count in daily.items() if day not in {4, 5, 6, 13}}
    # Slope 1, mean 19.5, half of 20 days.
    assert observed_block_trend(daily) == round(10 / 19.5, 4)
    assert observed_block_trend(gaps) == pytest.approx(10 / 19.5, abs=0.02)
    assert observed_block_trend({}) == 0
