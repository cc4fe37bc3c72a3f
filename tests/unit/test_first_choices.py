"""Where launches would have gone first under other weights."""

from __future__ import annotations

import pytest

from fleetcast.cli.first_choices import FirstChoices, TypeReplay
from fleetcast.cli.rescored import group_sweeps, rescore
from fleetcast.score_history import PastScore, SweepRecord
from fleetcast.scoring import DEFAULT_WEIGHTS, RegionSignals, Weights, weighted_score
from fleetcast.selection import RegionScore, rank_regions

ALL_ON_PRICE = Weights(
    spot_placement=0,
    spot_price_ratio=1,
    queue_depth=0,
    gpu_utilization=0,
    running_jobs=0,
    capacity_block_trend=0,
)
IDLE_AND_DEAR = RegionSignals(spot_placement=1, spot_price_ratio=0.9)
IDLE_AND_CHEAP = RegionSignals(spot_placement=1, spot_price_ratio=0)
BUSY_AND_CHEAP = RegionSignals(spot_price_ratio=0.1, queue_depth=90, gpu_utilization=100)


def record(
    region: str,
    sweep: int = 1,
    *,
    missing: int = 0,
    **signals: RegionSignals,
) -> SweepRecord:
    return SweepRecord(
        region=region,
        sweep_id=f"sweep-{sweep}",
        computed_at_s=300.0 * sweep,
        scores={"*": PastScore(score=40, missing_scored_signals=0, telemetry_status="complete")}
        | {
            f"t3.{size}": PastScore(
                score=weighted_score(seen),
                missing_scored_signals=missing,
                telemetry_status="partial" if missing else "complete",
                signals=seen,
            )
            for size, seen in signals.items()
        },
    )


def first_choices(records: list[SweepRecord], weights: Weights) -> list[TypeReplay]:
    choices = FirstChoices(tie_band=0.025)
    for sweep in group_sweeps(rescore(record, weights) for record in records):
        choices.add(sweep)
    return choices.result()


def test_launches_that_other_weights_send_elsewhere_are_counted() -> None:
    records = [
        record("us-east-1", 1, medium=IDLE_AND_DEAR),
        record("eu-west-1", 1, medium=BUSY_AND_CHEAP),
        record("eu-west-1", 2, medium=BUSY_AND_CHEAP),
        record("us-east-1", 2, medium=IDLE_AND_CHEAP),
    ]

    [replay] = first_choices(records, ALL_ON_PRICE)

    assert (replay.instance_type, replay.sweeps) == ("t3.medium", 2)
    assert replay.elsewhere_share == 0.5
    assert replay.before == {"us-east-1": 1.0}
    assert replay.after == {"eu-west-1": 0.5, "us-east-1": 0.5}


def test_the_same_weights_send_nothing_elsewhere() -> None:
    records = [
        record("us-east-1", medium=IDLE_AND_DEAR),
        record("eu-west-1", medium=BUSY_AND_CHEAP),
    ]

    [replay] = first_choices(records, DEFAULT_WEIGHTS)

    assert replay.elsewhere_share == 0
    assert replay.before == replay.after


def test_each_type_is_compared_for_itself() -> None:
    records = [
        record("us-east-1", medium=IDLE_AND_DEAR, nano=IDLE_AND_DEAR),
        record("eu-west-1", medium=BUSY_AND_CHEAP),
    ]

    assert [
        (replay.instance_type, replay.elsewhere_share)
        for replay in first_choices(records, ALL_ON_PRICE)
    ] == [("t3.medium", 1.0), ("t3.nano", 0.0)]


def test_other_weights_never_outweigh_missing_signals() -> None:
    records = [
        record("us-east-1", medium=IDLE_AND_DEAR),
        record("eu-west-1", missing=1, medium=BUSY_AND_CHEAP),
    ]

    [replay] = first_choices(records, ALL_ON_PRICE)

    assert replay.elsewhere_share == 0


def test_regions_without_telemetry_are_the_default_regions_business() -> None:
    records = [
        record("us-east-1", missing=2, medium=IDLE_AND_DEAR),
        record("eu-west-1", missing=2, medium=BUSY_AND_CHEAP),
    ]

    [replay] = first_choices(records, ALL_ON_PRICE)

    assert replay.elsewhere_share == 0


def test_no_sweeps_make_no_comparison() -> None:
    assert first_choices([], ALL_ON_PRICE) == []


def test_the_share_is_that_of_launches_that_spread_over_ties() -> None:
    cheap = {"a-1": 0.50, "b-1": 0.51, "c-1": 0.52, "d-1": 0.9}
    placed = {"a-1": 0.90, "b-1": 0.90, "c-1": 0.10, "d-1": 0.9}
    signals = {
        region: RegionSignals(spot_price_ratio=cheap[region], spot_placement=placed[region])
        for region in cheap
    }
    records = [record(region, medium=seen) for region, seen in signals.items()]

    [replay] = first_choices(records, ALL_ON_PRICE)

    launches = [f"r-{number}" for number in range(4000)]
    moved = sum(
        first(signals, DEFAULT_WEIGHTS, launch) != first(signals, ALL_ON_PRICE, launch)
        for launch in launches
    )
    assert 0 < replay.elsewhere_share < 1
    assert replay.elsewhere_share == pytest.approx(moved / len(launches), abs=0.03)


def first(signals: dict[str, RegionSignals], weights: Weights, launch_id: str) -> str:
    scores = {
        region: RegionScore(
            region=region,
            score=weighted_score(seen, weights),
            missing_scored_signals=0,
            telemetry_status="complete",
            computed_at_s=0,
        )
        for region, seen in signals.items()
    }
    return rank_regions(
        scores,
        scores,
        default_region="a-1",
        launch_id=launch_id,
        now_s=0,
        max_score_age_s=900,
    )[0].region
