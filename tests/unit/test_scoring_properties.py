"""What holds for every score: bounds, direction, and that failing never pays (I9)."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.scoring import (
    OBSERVED_SIGNALS,
    SCALES,
    RegionSignals,
    SignalReadings,
    Weights,
    capacity_block_trend,
    observed_block_trend,
    price_change_per_week,
    price_trend,
    score_terms,
    simple_score_of,
    weighted_score,
    with_worst_for_missing,
)

# Whether a larger value is worse; stated here apart from SCALES, which it checks.
LARGER_IS_WORSE = {
    "spot_placement": False,
    "spot_price_ratio": True,
    "queue_depth": True,
    "gpu_utilization": True,
    "running_jobs": True,
    "capacity_block_trend": False,
    "fleet_capacity": False,
    "spot_price_trend": True,
}

values = st.one_of(
    st.floats(-2, 2), st.floats(-200, 200), st.integers(-10, 10**12), st.floats(-1e99, 1e99)
)
signals = st.builds(RegionSignals, **dict.fromkeys(SCALES, values))
readings = st.builds(
    SignalReadings,
    **dict.fromkeys(OBSERVED_SIGNALS, st.none() | values),
    not_offered=st.frozensets(st.sampled_from(OBSERVED_SIGNALS)),
)


def without(observed: SignalReadings, signal: str) -> SignalReadings:
    """The same readings, but that reading this signal failed."""
    return msgspec.structs.replace(
        observed, **{signal: None}, not_offered=observed.not_offered - {signal}
    )


@st.composite
def weights(draw: st.DrawFn) -> Weights:
    size = len(SCALES)
    shares = draw(st.lists(st.integers(0, 100), min_size=size, max_size=size).filter(any))
    return Weights(
        **{signal: share / sum(shares) for signal, share in zip(SCALES, shares, strict=True)}
    )


@given(signals, weights())
def test_a_weighted_score_lies_between_zero_and_one(region: RegionSignals, by: Weights) -> None:
    assert 0 <= weighted_score(region, by) <= 1
    assert all(0 <= term.penalty <= 1 for term in score_terms(region, by))


@given(signals, weights(), st.sampled_from(sorted(SCALES)), values)
def test_a_worse_signal_never_improves_the_score(
    region: RegionSignals, by: Weights, signal: str, other: float
) -> None:
    now = getattr(region, signal)
    worse = max(now, other) if LARGER_IS_WORSE[signal] else min(now, other)
    worsened = msgspec.structs.replace(region, **{signal: worse})
    assert weighted_score(worsened, by) >= weighted_score(region, by)


@given(readings, weights(), st.sampled_from(OBSERVED_SIGNALS))
def test_a_signal_that_fails_never_improves_the_score(
    observed: SignalReadings, by: Weights, signal: str
) -> None:
    failed = without(observed, signal)
    before = weighted_score(with_worst_for_missing(observed), by)
    assert weighted_score(with_worst_for_missing(failed), by) >= before


@given(readings, st.sampled_from(OBSERVED_SIGNALS))
def test_a_signal_that_fails_never_improves_the_simple_score_among_equals_in_missing(
    observed: SignalReadings, signal: str
) -> None:
    failed = without(observed, signal)
    before = (observed.missing_scored_signals, simple_score_of(observed))
    assert (failed.missing_scored_signals, simple_score_of(failed)) >= before


@given(readings, st.sampled_from(OBSERVED_SIGNALS))
def test_a_signal_that_fails_never_improves_the_telemetry_status(
    observed: SignalReadings, signal: str
) -> None:
    order = ["complete", "partial", "unavailable"]
    failed = without(observed, signal)
    assert order.index(failed.telemetry_status) >= order.index(observed.telemetry_status)


@given(readings, weights(), st.sampled_from(OBSERVED_SIGNALS), values)
def test_a_signal_that_is_not_offered_scores_as_its_worst_and_is_not_missing(
    observed: SignalReadings, by: Weights, signal: str, value: float
) -> None:
    not_offered = msgspec.structs.replace(
        observed, **{signal: None}, not_offered=observed.not_offered | {signal}
    )
    read = msgspec.structs.replace(observed, **{signal: value})

    assert not_offered.missing_scored_signals == read.missing_scored_signals
    assert not_offered.telemetry_status == read.telemetry_status
    assert simple_score_of(not_offered) >= simple_score_of(read)
    assert weighted_score(with_worst_for_missing(not_offered), by) >= weighted_score(
        with_worst_for_missing(read), by
    )


prices = st.lists(st.floats(0.0001, 1000), max_size=20)


@given(prices)
def test_a_price_series_reversed_has_the_opposite_trend(newest_first: list[float]) -> None:
    trend, opposite = price_trend(newest_first), price_trend(newest_first[::-1])
    assert trend.slope == -opposite.slope
    assert trend.normalized_slope == -opposite.normalized_slope
    assert trend.price_changes == opposite.price_changes
    assert {trend.direction, opposite.direction} in ({"stable"}, {"rising", "falling"})


@given(prices)
def test_a_normalized_slope_lies_between_minus_one_and_one(newest_first: list[float]) -> None:
    assert -1 <= price_trend(newest_first).normalized_slope <= 1


@given(st.lists(st.integers(-5, 1000), max_size=30))
def test_capacity_block_trend_is_bounded_and_turns_with_its_weeks(counts: list[int]) -> None:
    trend = capacity_block_trend(counts)
    assert -1 <= trend <= 1
    assert capacity_block_trend(counts[::-1]) == -trend


@given(st.dictionaries(st.integers(0, 100), st.integers(-5, 1000)))
def test_an_observed_trend_is_bounded_and_turns_with_its_days(counts: dict[int, int]) -> None:
    trend = observed_block_trend(counts)
    assert -1 <= trend <= 1
    assert observed_block_trend({-day: count for day, count in counts.items()}) == -trend


times = st.integers(1_700_000_000, 1_800_000_000)


@given(st.dictionaries(times, st.floats(0.0001, 1000), max_size=20))
def test_a_price_change_is_bounded_and_turns_with_time(prices_at: dict[int, float]) -> None:
    change = price_change_per_week({float(at): usd for at, usd in prices_at.items()})
    assert -1 <= change <= 1
    assert price_change_per_week({-float(at): usd for at, usd in prices_at.items()}) == -change
