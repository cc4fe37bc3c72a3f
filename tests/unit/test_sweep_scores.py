"""Readings to rows: what is scored, what stands in, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.scoring import (
    DEFAULT_WEIGHTS,
    Reading,
    RegionSignals,
    SignalStatus,
    Weights,
    simple_score,
    weighted_score,
)
from lambdas.region_scores import ANY_TYPE, RegionSweep, ScoreRow
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.memory import RegionMemory, decode_memory
from lambdas.score_regions.reasons import reasons_for
from lambdas.score_regions.scores import score_region
from lambdas.settings import Region, ScoreRegionsSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW_S = 1_777_000_000.5
REGION = "us-east-1"
TYPE = "t3.medium"
BLOCK_TYPE = "p5.48xlarge"
OF_REGION = {
    "queue_depth": 3.0,
    "running_jobs": 2.0,
    "gpu_utilization": 42.0,
    "cpu_utilization": 10.0,
    "total_gpus": 16.0,
    "free_gpus": 10.0,
    "jobs_started_per_minute": 6.0,
}
OF_TYPE = {
    "spot_price_usd_per_hour": 0.3,
    "on_demand_price_usd_per_hour": 1.0,
    "spot_placement": 0.9,
    "spot_price_trend": 0.1,
}
ALL_READ = OF_REGION | OF_TYPE
FAILED = Reading.absent("failed", "ThrottlingException: slow down")
# What of these readings is scored for a type.
SCORED = RegionSignals(
    spot_placement=0.9,
    spot_price_ratio=0.3,
    queue_depth=3,
    gpu_utilization=42,
    running_jobs=2,
    capacity_block_trend=0,
)


def settings(*types: str, weights: Weights = DEFAULT_WEIGHTS) -> ScoreRegionsSettings:
    return ScoreRegionsSettings(
        region_scores_table="RegionScores",
        regions=(Region(name=REGION, nats_url="tls://nats:4222"),),
        scored_instance_types=types or (TYPE,),
        weights=weights,
        score_ttl_s=3600,
        history_ttl_s=7200,
    )


def seen(value: float) -> Reading:
    return Reading.of(value, observed_at_s=NOW_S - 10)


def readings(
    instance_type: str = TYPE, /, without: tuple[str, ...] = (), **others: Reading
) -> dict[SignalKey, Reading]:
    """One region's readings: all that can be read, ten seconds ago, and the others as they are."""
    named = {name: seen(value) for name, value in ALL_READ.items() if name not in without}
    return {
        SignalKey(name, REGION, None if name in OF_REGION else instance_type): reading
        for name, reading in (named | others).items()
    }


def swept(
    of: Mapping[SignalKey, Reading],
    by: ScoreRegionsSettings | None = None,
    memory: RegionMemory | None = None,
) -> RegionSweep:
    return score_region(
        by or settings(),
        REGION,
        of,
        memory or RegionMemory(),
        sweep_id="sweep-1",
        computed_at_s=NOW_S,
    )


def row_of(
    of: Mapping[SignalKey, Reading],
    instance_type: str = TYPE,
    by: ScoreRegionsSettings | None = None,
    memory: RegionMemory | None = None,
) -> ScoreRow:
    [row] = [row for row in swept(of, by, memory).rows if row.instance_type == instance_type]
    return row


def test_a_region_has_a_row_without_a_type_and_one_for_each_type() -> None:
    types = ("t3.medium", "c7i.large", "t3.medium")
    of = readings("t3.medium") | readings("c7i.large")

    assert [row.instance_type for row in swept(of, settings(*types)).rows] == [
        ANY_TYPE,
        "t3.medium",
        "c7i.large",
    ]


def test_a_rows_scores_are_those_of_the_scoring_rules() -> None:
    assert row_of(readings(), ANY_TYPE).score == simple_score(3, 42, 2, 0)
    assert row_of(readings()).score == weighted_score(SCORED)


def test_the_configured_weights_count() -> None:
    price_alone = Weights(
        spot_placement=0,
        spot_price_ratio=1,
        queue_depth=0,
        gpu_utilization=0,
        running_jobs=0,
        capacity_block_trend=0,
    )

    assert row_of(readings(), by=settings(weights=price_alone)).score == pytest.approx(0.3)


def test_what_is_scored_on_request_comes_from_the_readings_too() -> None:
    weights = Weights(
        spot_placement=0,
        spot_price_ratio=0,
        queue_depth=0,
        gpu_utilization=0,
        running_jobs=0,
        capacity_block_trend=0,
        fleet_capacity=0.5,
        spot_price_trend=0.5,
    )
    of = readings(fleet_capacity=seen(30))

    # Room for 30 costs a quarter, a price that rises 10% a week 0.55; unread room costs all.
    assert row_of(of, by=settings(weights=weights)).score == 0.5 * 0.25 + 0.5 * 0.55
    assert row_of(readings(), by=settings(weights=weights)).score == 0.5 + 0.5 * 0.55


def test_a_row_says_which_sweep_made_it_when_and_until_when_it_is_kept() -> None:
    row = row_of(readings())

    assert (row.sweep_id, row.computed_at_s, row.expires_at_s) == (
        "sweep-1",
        NOW_S,
        int(NOW_S) + 3600,
    )


def test_a_row_holds_every_signal_with_its_value_status_age_and_error() -> None:
    row = row_of(readings(without=("queue_depth",), queue_depth=FAILED))

    assert row.signals["queue_depth"] == FAILED
    assert row.signals["gpu_utilization"] == seen(42)
    assert row.signals["spot_price_ratio"] == seen(0.3)
    assert row.signals["free_gpus"] == seen(10)
    derived = {"spot_price_ratio", "capacity_block_trend", "average_wait_s"}
    assert set(row.signals) == {*ALL_READ, *derived}


def test_what_is_kept_of_a_sweep_gives_its_scores_again() -> None:
    sweep = swept(readings(without=("gpu_utilization",), gpu_utilization=FAILED))

    assert sweep.record_expires_at_s == int(NOW_S) + 7200
    assert sweep.record.scores.keys() == {ANY_TYPE, TYPE}
    for row in sweep.rows:
        past = sweep.record.scores[row.instance_type]
        assert (past.score, past.missing_scored_signals) == (row.score, 1)
        if past.signals is not None:
            assert weighted_score(past.signals) == row.score


def test_a_sweep_carries_the_memory_for_the_next_one() -> None:
    memory = RegionMemory(swept_at_s=NOW_S, series={"spot_price_usd_per_hour t3.medium": {1: 0.2}})

    assert decode_memory(swept(readings(), memory=memory).memory) == memory


# --- what was not read ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unread", "missing_n", "status"),
    [
        ((), 0, "complete"),
        (("cpu_utilization",), 0, "partial"),
        (("queue_depth",), 1, "partial"),
        (("queue_depth", "gpu_utilization"), 2, "partial"),
        (("queue_depth", "gpu_utilization", "cpu_utilization"), 2, "unavailable"),
    ],
)
@pytest.mark.parametrize("instance_type", [ANY_TYPE, TYPE])
def test_unread_telemetry_is_counted_and_named(
    instance_type: str, unread: tuple[str, ...], missing_n: int, status: str
) -> None:
    row = row_of(readings(without=unread, **dict.fromkeys(unread, FAILED)), instance_type)

    assert (row.missing_scored_signals, row.telemetry_status) == (missing_n, status)


@pytest.mark.parametrize("status", ["stale", "refused", "missing", "failed"])
@pytest.mark.parametrize("signal", ["queue_depth", "gpu_utilization", "spot_placement"])
@pytest.mark.parametrize("instance_type", [ANY_TYPE, TYPE])
def test_a_last_good_value_scores_as_if_there_were_none(
    instance_type: str, signal: str, status: SignalStatus
) -> None:
    last_good = Reading(value=0.5, status=status, observed_at_s=NOW_S - 600, error="no")
    with_it = row_of(readings(without=(signal,), **{signal: last_good}), instance_type)
    without = row_of(readings(without=(signal,), **{signal: FAILED}), instance_type)

    assert with_it.score == without.score
    assert with_it.missing_scored_signals == without.missing_scored_signals
    assert with_it.reasons == without.reasons


def test_a_cluster_that_is_scaled_to_zero_is_read_and_counts_as_saturated() -> None:
    signals = ("gpu_utilization", "cpu_utilization")
    none = Reading.absent("not_offered", "scaled to zero")
    row = row_of(readings(without=signals, **dict.fromkeys(signals, none)), ANY_TYPE)

    assert (row.missing_scored_signals, row.telemetry_status) == (0, "complete")
    assert row.score == simple_score(3, 100, 2, 0)


def test_a_signal_that_does_not_apply_counts_with_the_value_that_is_given_instead() -> None:
    none = Reading(value=0.0, status="not_offered", observed_at_s=NOW_S, error="not queued")
    row = row_of(readings(without=("queue_depth",), queue_depth=none), ANY_TYPE)

    assert row.missing_scored_signals == 0
    assert row.score == simple_score(0, 42, 2, 0)
    assert not any("queue" in reason for reason in row.reasons)


# --- what follows from several readings ----------------------------------------------------


@pytest.mark.parametrize("unread", ["spot_price_usd_per_hour", "on_demand_price_usd_per_hour"])
def test_without_either_price_the_worst_ratio_counts_and_its_error_is_kept(unread: str) -> None:
    row = row_of(readings(without=(unread,), **{unread: FAILED}))

    assert row.signals["spot_price_ratio"] == FAILED
    assert row.score > row_of(readings()).score


def test_a_ratio_of_a_last_good_price_is_shown_and_counts_as_none() -> None:
    stale = Reading(value=0.2, status="stale", observed_at_s=NOW_S - 600, error="slow down")
    row = row_of(readings(without=("spot_price_usd_per_hour",), spot_price_usd_per_hour=stale))

    assert row.signals["spot_price_ratio"] == stale
    assert (
        row.score
        == row_of(
            readings(without=("spot_price_usd_per_hour",), spot_price_usd_per_hour=FAILED)
        ).score
    )


def test_a_ratio_is_as_old_as_the_older_price() -> None:
    yesterday = Reading.of(1.0, observed_at_s=NOW_S - 86_400)
    row = row_of(
        readings(without=("on_demand_price_usd_per_hour",), on_demand_price_usd_per_hour=yesterday)
    )

    assert row.signals["spot_price_ratio"].observed_at_s == NOW_S - 86_400


def test_a_ratio_that_overflows_is_a_failure() -> None:
    prices = {
        "spot_price_usd_per_hour": seen(1e99),
        "on_demand_price_usd_per_hour": seen(1e-99),
    }
    row = row_of(readings(without=tuple(prices), **prices))

    assert row.signals["spot_price_ratio"].status == "failed"


@pytest.mark.parametrize(
    ("waiting", "started_per_minute", "wait_s"),
    [(3, 6, 30), (0, 6, 0), (0, 0, 0), (3, 0, None)],
)
def test_an_average_wait_is_what_waits_over_what_is_started(
    waiting: float, started_per_minute: float, wait_s: float | None
) -> None:
    load = {"queue_depth": seen(waiting), "jobs_started_per_minute": seen(started_per_minute)}
    row = row_of(readings(without=tuple(load), **load))

    assert row.signals["average_wait_s"].value == wait_s


def test_without_both_of_its_parts_there_is_no_average_wait() -> None:
    no_queue = row_of(readings(without=("queue_depth",), queue_depth=FAILED))
    no_rate = row_of(readings(without=("jobs_started_per_minute",)))

    assert no_queue.signals["average_wait_s"] == FAILED
    assert no_rate.signals["average_wait_s"].status == "missing"


# --- the trend of capacity blocks ----------------------------------------------------------


def block_row(days: int, *, offers: Reading | None = None) -> ScoreRow:
    """The row of a type that is sold in blocks: each day one more of them."""
    today = int(NOW_S // 86_400)
    by_day = {today - days + 1 + day: 10.0 + day for day in range(days)}
    memory = RegionMemory(series={f"capacity_block_offers {BLOCK_TYPE}": by_day})
    of = readings(
        BLOCK_TYPE,
        capacity_block_offers=offers or seen(10 + days),
        capacity_block_window_trend=seen(-0.7),
    )
    return row_of(of, BLOCK_TYPE, settings(BLOCK_TYPE), memory)


def test_blocks_count_by_what_was_observed_once_that_is_fourteen_days() -> None:
    trend = block_row(14).signals["capacity_block_trend"]

    assert trend.status == "ok"
    assert trend.value == round(14 / (2 * 16.5), 4)


def test_until_then_they_are_neutral_and_the_window_is_only_shown() -> None:
    row = block_row(13)

    assert row.signals["capacity_block_trend"].counted == 0
    assert "13 so far" in (row.signals["capacity_block_trend"].error or "")
    assert row.signals["capacity_block_window_trend"].value == -0.7
    assert row.score == weighted_score(SCORED)


@pytest.mark.parametrize("status", ["failed", "refused", "missing", "not_offered", "stale"])
@pytest.mark.parametrize("days", [0, 30])
def test_blocks_that_could_not_be_read_are_the_worst(days: int, status: SignalStatus) -> None:
    row = block_row(days, offers=Reading.absent(status, "no"))

    assert row.signals["capacity_block_trend"].status == status
    assert row.score == round(weighted_score(SCORED) + 0.05, 4)


def test_a_type_that_is_not_sold_in_blocks_has_a_neutral_trend() -> None:
    trend = row_of(readings()).signals["capacity_block_trend"]

    assert (trend.status, trend.counted) == ("not_offered", 0)


# --- reasons -------------------------------------------------------------------------------

NO_TELEMETRY = dict.fromkeys(("queue_depth", "gpu_utilization", "cpu_utilization"), FAILED)


def reasons(instance_type: str = TYPE, /, **values: float) -> tuple[str, ...]:
    return reasons_for(
        instance_type, NO_TELEMETRY | {name: seen(value) for name, value in values.items()}
    )


@pytest.mark.parametrize(
    ("signal", "value", "reason"),
    [
        ("queue_depth", 0, "empty queue"),
        ("queue_depth", 3, "low queue depth (3)"),
        ("queue_depth", 4, "low queue depth (4)"),
        ("gpu_utilization", 0, "100% GPU available"),
        ("gpu_utilization", 42, "58% GPU available"),
        ("gpu_utilization", 49, "51% GPU available"),
        ("running_jobs", 0, "no running jobs"),
        ("running_jobs", 4, "few running jobs (4)"),
        ("spot_placement", 0.7, "high spot placement score (0.7)"),
        ("spot_placement", 0.6, "moderate spot placement score (0.6)"),
        ("spot_placement", 0.4, "moderate spot placement score (0.4)"),
        ("spot_price_ratio", 0.3, "good spot savings (70% off on-demand)"),
        ("spot_price_ratio", 0.49, "good spot savings (51% off on-demand)"),
        ("capacity_block_trend", 0.21, "capacity blocks trending up"),
        ("capacity_block_trend", -0.21, "capacity blocks trending down"),
    ],
)
def test_what_speaks_for_or_against_a_region_is_said(
    signal: str, value: float, reason: str
) -> None:
    assert reasons(**{signal: value})[-1] == reason


def test_a_moderate_load_is_a_reason_only_where_nothing_else_counts() -> None:
    for percent in (50, 79.9):
        assert reasons(ANY_TYPE, gpu_utilization=percent)[-1] == "moderate GPU load"
        assert reasons(TYPE, gpu_utilization=percent) == ("telemetry is partial: queue, CPU",)


def test_what_does_not_speak_for_a_region_is_no_reason() -> None:
    assert (
        reasons(
            ANY_TYPE,
            queue_depth=5,
            gpu_utilization=80,
            cpu_utilization=1,
            running_jobs=5,
            spot_placement=0.39,
            spot_price_ratio=0.5,
            capacity_block_trend=0.2,
        )
        == ()
    )
    assert reasons(capacity_block_trend=-0.2) == ("no telemetry",)


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ({"gpu_utilization": 0, "cpu_utilization": 0}, "telemetry is partial: queue"),
        ({"queue_depth": 0}, "telemetry is partial: GPU, CPU"),
        ({"running_jobs": 0}, "no telemetry"),
    ],
)
def test_telemetry_that_was_not_read_is_named_first(values: dict[str, float], first: str) -> None:
    assert reasons(**values)[0] == first


def test_what_was_not_read_gives_no_other_reason() -> None:
    assert reasons() == ("no telemetry",)
    stale = Reading(value=0.0, status="stale", observed_at_s=NOW_S, error="slow down")
    assert reasons_for(ANY_TYPE, dict.fromkeys(NO_TELEMETRY, stale)) == ("no telemetry",)
