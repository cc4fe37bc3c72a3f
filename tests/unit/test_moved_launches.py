"""Which launches of the past would have gone elsewhere under other weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.cli.moved_launches import LaunchesReplay, Move, MovedLaunches
from fleetcast.cli.rescored import age_order, group_sweeps, rescore
from fleetcast.launch_history import PastLaunch
from fleetcast.score_history import PastScore, SweepRecord
from fleetcast.scoring import DEFAULT_WEIGHTS, RegionSignals, Weights, weighted_score
from fleetcast.selection import RegionScore, rank_regions

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL_ON_PRICE = Weights(
    spot_placement=0,
    spot_price_ratio=1,
    queue_depth=0,
    gpu_utilization=0,
    running_jobs=0,
    capacity_block_trend=0,
)
# Under the default weights the first is best and the last worst, by price it is the reverse.
PLACED_WELL = RegionSignals(spot_placement=1, spot_price_ratio=0.9)
PLACED_SOSO = RegionSignals(spot_placement=0.5, spot_price_ratio=0.5)
PLACED_BADLY = RegionSignals(spot_placement=0, spot_price_ratio=0.1, queue_depth=90)
US, EU, AP = "us-east-1", "eu-west-1", "ap-south-1"
THREE = {US: PLACED_WELL, EU: PLACED_SOSO, AP: PLACED_BADLY}


def sweep(
    at_s: float,
    signals: dict[str, RegionSignals],
    *,
    missing: int = 0,
    instance_type: str = "t3.medium",
) -> list[SweepRecord]:
    return [
        SweepRecord(
            region=region,
            sweep_id=f"sweep-{at_s}",
            computed_at_s=at_s,
            scores={
                "*": PastScore(40, missing, "complete"),
                instance_type: PastScore(weighted_score(seen), missing, "complete", seen),
            },
        )
        for region, seen in signals.items()
    ]


def launch(
    at_s: float, region: str | None, *, launch_id: str = "r-1", pinned: bool = False
) -> PastLaunch:
    return PastLaunch(
        reservation_id=launch_id,
        instance_type="t3.medium",
        launched_at_s=at_s,
        region=region,
        pinned=pinned,
    )


def replayed(
    records: Iterable[SweepRecord],
    *launches: PastLaunch,
    weights: Weights = ALL_ON_PRICE,
    max_score_age_s: float = 900,
) -> LaunchesReplay:
    moved = MovedLaunches(launches, max_score_age_s=max_score_age_s, tie_band=0.025)
    rescored = (rescore(record, weights) for record in sorted(records, key=age_order))
    for regions in group_sweeps(rescored):
        moved.add(regions)
    return moved.result()


def moves(result: LaunchesReplay) -> list[tuple[str, str, int]]:
    return [(move.from_region, move.to_region, move.launches) for move in result.moves]


def test_a_launch_that_other_weights_send_elsewhere_is_counted_with_its_way() -> None:
    result = replayed(
        sweep(100, THREE), *(launch(200, US, launch_id=f"r-{number}") for number in range(3))
    )

    assert (result.placed, result.elsewhere, result.indifferent) == (3, 3, 0)
    assert result.moves == (Move(from_region=US, to_region=AP, launches=3),)


def test_the_commonest_way_comes_first() -> None:
    records = sweep(100, THREE) + sweep(300, {EU: PLACED_WELL, AP: PLACED_SOSO, US: PLACED_BADLY})
    launches = [launch(at_s, US if at_s < 300 else EU) for at_s in (150, 400, 450)]

    assert moves(replayed(records, *launches)) == [(EU, US, 2), (US, AP, 1)]


@pytest.mark.parametrize(
    ("at_s", "to"),
    [(100, AP), (199.9, AP), (200, EU), (5000, EU)],
)
def test_the_sweep_that_was_in_force_at_the_launch_decides(at_s: float, to: str) -> None:
    cheaper = RegionSignals(spot_placement=0, spot_price_ratio=0, queue_depth=90)
    records = sweep(100, THREE) + sweep(200, THREE | {EU: cheaper})

    assert moves(replayed(records, launch(at_s, US))) == [(US, to, 1)]


def test_a_region_that_missed_a_sweep_keeps_its_last_scores() -> None:
    records = sweep(100, THREE) + sweep(200, {US: PLACED_WELL, EU: PLACED_SOSO})

    assert moves(replayed(records, launch(250, US))) == [(US, AP, 1)]


def test_scores_that_had_grown_old_stand_behind_fresh_ones() -> None:
    records = sweep(100, THREE) + sweep(1200, {US: PLACED_WELL, EU: PLACED_SOSO})

    assert moves(replayed(records, launch(1201, US))) == [(US, EU, 1)]
    assert moves(replayed(records, launch(1201, US), max_score_age_s=2000)) == [(US, AP, 1)]


def test_a_region_that_had_refused_the_launch_counts_as_full() -> None:
    # US comes first under both; then EU in force, AP by price.
    best = RegionSignals(spot_placement=1, spot_price_ratio=0)
    records = sweep(100, THREE | {US: best})

    assert moves(replayed(records, launch(200, EU))) == [(EU, AP, 1)]
    assert moves(replayed(records, launch(200, AP))) == []


def test_a_region_without_a_score_is_ranked_last() -> None:
    records = sweep(100, {US: PLACED_WELL, EU: PLACED_SOSO})

    # AP took it, so the two others were full.
    result = replayed(records, launch(200, AP))

    assert (result.placed, result.elsewhere, result.indifferent) == (1, 0, 0)


@pytest.mark.parametrize(
    ("records", "pinned"),
    [
        (sweep(100, THREE), True),
        (sweep(100, THREE, missing=2), False),
        (sweep(100, THREE, instance_type="p5.48xlarge"), False),
        (sweep(300, THREE), False),
        ([], False),
    ],
    ids=["pinned", "no telemetry", "a type without scores", "before any sweep", "no sweep"],
)
def test_a_launch_that_no_weights_could_move_stays_and_is_told_apart(
    records: list[SweepRecord], *, pinned: bool
) -> None:
    result = replayed(records, launch(200, US, pinned=pinned))

    assert (result.placed, result.elsewhere, result.indifferent) == (1, 0, 1)


def test_a_launch_that_no_region_took_is_counted_apart() -> None:
    result = replayed(sweep(100, THREE), launch(200, None), launch(201, US))

    assert (result.placed, result.elsewhere, result.unplaced) == (1, 1, 1)


def test_ties_are_spread_by_the_launchs_own_id() -> None:
    # Under the default weights US and EU are as good as each other, by price US is better.
    signals = {
        region: RegionSignals(spot_placement=1, spot_price_ratio=ratio)
        for region, ratio in ((US, 0.5), (EU, 0.6), (AP, 0.95))
    }
    launches = [
        launch(200, first(signals, DEFAULT_WEIGHTS, f"r-{number}"), launch_id=f"r-{number}")
        for number in range(200)
    ]
    in_eu = sum(one.region == EU for one in launches)

    result = replayed(sweep(100, signals), *launches)
    back = replayed(
        [rescored_by_price(record) for record in sweep(100, signals)],
        *(launch(200, US, launch_id=one.reservation_id) for one in launches),
        weights=DEFAULT_WEIGHTS,
    )

    assert 0 < in_eu < 200
    assert moves(result) == [(EU, US, in_eu)]
    assert moves(back) == [(US, EU, in_eu)]


def rescored_by_price(record: SweepRecord) -> SweepRecord:
    """Return the record as a sweep would have written it under ALL_ON_PRICE."""
    scores = {
        instance_type: PastScore(
            weighted_score(past.signals, ALL_ON_PRICE),
            past.missing_scored_signals,
            past.telemetry_status,
            past.signals,
        )
        for instance_type, past in record.scores.items()
        if past.signals is not None
    }
    return msgspec.structs.replace(record, scores=scores)


signals_strategy = st.builds(
    RegionSignals,
    spot_placement=st.floats(0, 1),
    spot_price_ratio=st.floats(0, 1),
    queue_depth=st.integers(0, 50),
)
fleets = st.dictionaries(st.sampled_from([US, EU, AP, "sa-east-1"]), signals_strategy, min_size=1)


@given(fleets, fleets, st.sampled_from([US, EU, AP]), st.integers(0, 400), st.text(max_size=4))
def test_the_same_weights_move_nothing_wherever_it_went(
    early: dict[str, RegionSignals],
    late: dict[str, RegionSignals],
    took: str,
    at_s: int,
    launch_id: str,
) -> None:
    records = sweep(100, early) + sweep(300, late)
    launches = [launch(at_s, took, launch_id=launch_id)]

    result = replayed(records, *launches, weights=DEFAULT_WEIGHTS)

    assert (result.placed, result.elsewhere) == (1, 0)


def first(signals: dict[str, RegionSignals], weights: Weights, launch_id: str) -> str:
    scores = {
        region: RegionScore(
            region=region,
            score=weighted_score(seen, weights),
            missing_scored_signals=0,
            telemetry_status="complete",
            computed_at_s=100,
        )
        for region, seen in signals.items()
    }
    return rank_regions(
        scores,
        scores,
        default_region=US,
        launch_id=launch_id,
        now_s=200,
        max_score_age_s=900,
    )[0].region
