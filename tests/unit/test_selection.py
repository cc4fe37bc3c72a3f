"""The order in which regions are tried."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fleetcast.errors import InvalidConfiguration, InvalidSignal
from fleetcast.scoring import (
    OBSERVED_SIGNALS,
    SignalReadings,
    TelemetryStatus,
    weighted_score,
    with_worst_for_missing,
)
from fleetcast.selection import RankedRegion, RegionScore, rank_regions

NOW_S = 1_800_000_000.0
MAX_SCORE_AGE_S = 900.0


def score_of(region: str, score: float, *, missing: int = 0, age_s: float = 60.0) -> RegionScore:
    status: TelemetryStatus = "complete" if missing == 0 else "partial"
    return RegionScore(
        region=region,
        score=score,
        missing_scored_signals=missing,
        telemetry_status=status if missing < 2 else "unavailable",
        computed_at_s=NOW_S - age_s,
    )


def rank(
    *scores: RegionScore,
    unscored: tuple[str, ...] = (),
    default_region: str | None = None,
    launch_id: str = "r-1",
    tie_band: float = 0.025,
) -> list[RankedRegion]:
    regions = [*unscored, *(score.region for score in scores)]
    return rank_regions(
        regions,
        {score.region: score for score in scores},
        default_region=default_region or regions[0],
        launch_id=launch_id,
        now_s=NOW_S,
        max_score_age_s=MAX_SCORE_AGE_S,
        tie_band=tie_band,
    )


def names(ranked: list[RankedRegion]) -> list[str]:
    return [place.region for place in ranked]


def orders_of_many_launches(
    *scores: RegionScore, default_region: str | None = None, tie_band: float = 0.025
) -> set[tuple[str, ...]]:
    return {
        tuple(
            names(
                rank(
                    *scores,
                    default_region=default_region,
                    launch_id=f"r-{number}",
                    tie_band=tie_band,
                )
            )
        )
        for number in range(200)
    }


# --- the order -----------------------------------------------------------------------------


def test_the_lower_score_comes_first() -> None:
    assert names(rank(score_of("a", 0.5), score_of("b", 0.2), score_of("c", 0.8))) == [
        "b",
        "a",
        "c",
    ]


def test_fewer_missing_signals_outrank_a_better_score() -> None:
    assert names(rank(score_of("blind", 0.1, missing=1), score_of("seen", 0.9))) == [
        "seen",
        "blind",
    ]


def test_a_stale_score_never_outranks_a_fresh_one() -> None:
    ranked = rank(score_of("old", 0.1, age_s=901), score_of("new", 0.9, missing=1, age_s=900))
    assert names(ranked) == ["new", "old"]
    assert [place.freshness for place in ranked] == ["fresh", "stale"]


def test_stale_scores_are_used_in_their_order_when_there_are_no_fresh_ones() -> None:
    assert names(rank(score_of("a", 0.8, age_s=5000), score_of("b", 0.3, age_s=5000))) == ["b", "a"]


def test_a_score_from_far_in_the_future_is_stale() -> None:
    ranked = rank(score_of("ahead", 0.1, age_s=-3600), score_of("now", 0.9))
    assert names(ranked) == ["now", "ahead"]
    assert ranked[1].age_s == -3600


def test_an_unscored_region_comes_last_and_says_so() -> None:
    ranked = rank(score_of("stale", 0.9, age_s=5000), unscored=("new",), default_region="stale")
    assert names(ranked) == ["stale", "new"]
    assert ranked[1] == RankedRegion(region="new", freshness="unscored")


def test_a_place_shows_what_put_it_there() -> None:
    assert rank(score_of("a", 0.5, missing=1, age_s=30)) == [
        RankedRegion(
            region="a",
            freshness="fresh",
            score=0.5,
            age_s=30,
            missing_scored_signals=1,
            telemetry_status="partial",
        )
    ]


def test_a_score_of_an_unconfigured_region_is_ignored() -> None:
    ranked = rank_regions(
        ["a"],
        {"gone": score_of("gone", 0.1)},
        default_region="a",
        launch_id="r-1",
        now_s=NOW_S,
        max_score_age_s=MAX_SCORE_AGE_S,
    )
    assert names(ranked) == ["a"]


@pytest.mark.parametrize("regions", [["a", "b"], []])
def test_a_default_region_that_is_not_configured_is_refused(regions: list[str]) -> None:
    with pytest.raises(InvalidConfiguration, match="default_region"):
        rank_regions(
            regions,
            {},
            default_region="c",
            launch_id="r-1",
            now_s=NOW_S,
            max_score_age_s=MAX_SCORE_AGE_S,
        )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_score_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(InvalidSignal, match="eu-west-1"):
        score_of("eu-west-1", value)
    with pytest.raises(InvalidSignal, match="eu-west-1"):
        score_of("eu-west-1", 0.5, age_s=value)


# --- without telemetry ---------------------------------------------------------------------


def test_the_default_region_comes_first_when_nothing_is_scored() -> None:
    assert names(rank(unscored=("a", "b", "c"), default_region="b")) == ["b", "a", "c"]


def test_the_default_region_comes_first_when_no_region_has_telemetry_whatever_the_scores() -> None:
    ranked = rank(score_of("a", 0.1, missing=2), score_of("b", 0.9, missing=2), default_region="b")
    assert names(ranked) == ["b", "a"]


def test_the_default_region_has_no_privilege_when_any_region_has_telemetry() -> None:
    ranked = rank(score_of("a", 0.9, missing=1), score_of("b", 0.1, missing=2), default_region="b")
    assert names(ranked) == ["a", "b"]


def test_cpu_telemetry_alone_does_not_make_a_region_seen() -> None:
    # Else the default region, were it the only one with it, would gain by losing it.
    cpu_only = msgspec.structs.replace(score_of("b", 0.9, missing=2), telemetry_status="partial")
    assert names(rank(score_of("a", 0.1, missing=2), cpu_only, default_region="b")) == ["b", "a"]


def test_stale_telemetry_does_not_make_up_for_fresh_scores_without_any() -> None:
    # Else the stale default region, behind the fresh one here, would gain by losing it.
    stale = score_of("b", 0.1, age_s=5000)
    assert names(rank(score_of("a", 0.9, missing=2), stale, default_region="b")) == ["b", "a"]


# --- ties ----------------------------------------------------------------------------------


def test_regions_within_the_tie_band_share_the_launches() -> None:
    # One spot placement point apart, which is exactly the band.
    orders = orders_of_many_launches(score_of("a", 0.2181), score_of("b", 0.2431))
    assert orders == {("a", "b"), ("b", "a")}


def test_a_retry_of_a_launch_goes_the_same_way() -> None:
    # Literal orders: they must be the same in every process and release.
    scores = [score_of(name, 0.2) for name in ("a", "b", "c")]
    assert names(rank(*scores, launch_id="r-0123456789abcdef0")) == ["c", "b", "a"]
    assert names(rank(*scores, launch_id="r-0123456789abcdef1")) == ["b", "c", "a"]


@pytest.mark.parametrize(
    "other",
    [
        score_of("b", 0.2432),
        score_of("b", 0.2181, missing=1),
        score_of("b", 0.2181, age_s=5000),
    ],
    ids=["outside the band", "more signals missing", "stale"],
)
def test_a_region_that_is_not_as_good_as_the_best_gets_no_share(other: RegionScore) -> None:
    assert orders_of_many_launches(score_of("a", 0.2181), other) == {("a", "b")}


def test_only_the_ties_with_the_best_are_spread() -> None:
    orders = orders_of_many_launches(
        score_of("a", 0.2), score_of("b", 0.5), score_of("c", 0.5), score_of("d", 0.21)
    )
    assert orders == {("a", "d", "b", "c"), ("d", "a", "b", "c")}


def test_without_a_tie_band_equal_scores_are_ordered_by_name() -> None:
    orders = orders_of_many_launches(score_of("b", 0.2), score_of("a", 0.2), tie_band=0)
    assert orders == {("a", "b")}


def test_the_default_region_is_not_spread_when_blind() -> None:
    orders = orders_of_many_launches(
        score_of("a", 0.2, missing=2), score_of("b", 0.2, missing=2), default_region="b"
    )
    assert orders == {("b", "a")}


# --- what always holds ---------------------------------------------------------------------

REGIONS = ("a", "b", "c", "d", "e")

values = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.floats(0, 100))
readings = st.builds(
    SignalReadings,
    **dict.fromkeys(OBSERVED_SIGNALS, st.none() | values),
)
ages_s = st.sampled_from([0.0, 60.0, 900.0, 901.0, 5000.0, -5000.0])


def scored(region: str, observed: SignalReadings, age_s: float) -> RegionScore:
    return RegionScore(
        region=region,
        score=weighted_score(with_worst_for_missing(observed)),
        missing_scored_signals=observed.missing_scored_signals,
        telemetry_status=observed.telemetry_status,
        computed_at_s=NOW_S - age_s,
    )


def rank_observed(
    observed: dict[str, tuple[SignalReadings, float]],
    *,
    default_region: str,
    launch_id: str,
    regions: tuple[str, ...] = REGIONS,
) -> list[str]:
    ranked = rank_regions(
        regions,
        {name: scored(name, *observation) for name, observation in observed.items()},
        default_region=default_region,
        launch_id=launch_id,
        now_s=NOW_S,
        max_score_age_s=MAX_SCORE_AGE_S,
    )
    return names(ranked)


observations = st.dictionaries(st.sampled_from(REGIONS), st.tuples(readings, ages_s))
launch_ids = st.text("0123456789abcdef", min_size=1, max_size=4)


@given(observations, st.sampled_from(REGIONS), launch_ids, st.permutations(REGIONS))
def test_every_region_is_ranked_once_in_an_order_that_input_order_does_not_change(
    observed: dict[str, tuple[SignalReadings, float]],
    default_region: str,
    launch_id: str,
    shuffled: list[str],
) -> None:
    order = rank_observed(observed, default_region=default_region, launch_id=launch_id)
    assert sorted(order) == list(REGIONS)
    again = rank_observed(
        {name: observed[name] for name in shuffled if name in observed},
        default_region=default_region,
        launch_id=launch_id,
        regions=(*shuffled, *shuffled),
    )
    assert again == order


@given(
    observations,
    st.sampled_from(REGIONS),
    launch_ids,
    st.sampled_from(REGIONS),
    st.sampled_from(OBSERVED_SIGNALS),
)
def test_a_signal_that_fails_never_improves_the_rank_of_its_region(
    observed: dict[str, tuple[SignalReadings, float]],
    default_region: str,
    launch_id: str,
    region: str,
    signal: str,
) -> None:
    assume(region in observed)
    before = rank_observed(observed, default_region=default_region, launch_id=launch_id)
    was, age_s = observed[region]
    failed = {**observed, region: (msgspec.structs.replace(was, **{signal: None}), age_s)}
    after = rank_observed(failed, default_region=default_region, launch_id=launch_id)
    assert after.index(region) >= before.index(region)


@given(observations, st.sampled_from(REGIONS), launch_ids, st.sampled_from(REGIONS))
def test_a_score_that_goes_stale_or_away_never_improves_the_rank_of_its_region(
    observed: dict[str, tuple[SignalReadings, float]],
    default_region: str,
    launch_id: str,
    region: str,
) -> None:
    assume(region in observed)
    stale = {**observed, region: (observed[region][0], 5000.0)}
    gone = {name: observation for name, observation in observed.items() if name != region}
    indexes = [
        rank_observed(each, default_region=default_region, launch_id=launch_id).index(region)
        for each in (observed, stale, gone)
    ]
    assert indexes == sorted(indexes)
