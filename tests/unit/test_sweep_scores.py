"""Readings to rows: what is scored, what stands in, and what is said of it."""

from collections.abc import Mapping

import pytest

from fleetcast.scoring import (
    DEFAULT_WEIGHTS,
    RegionSignals,
    SignalReadings,
    Weights,
    simple_score,
    weighted_score,
)
from lambdas.region_scores import ANY_TYPE, Reading, ScoreRow
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.reasons import reasons_for
from lambdas.score_regions.scores import score_rows
from lambdas.settings import Region, ScoreRegionsSettings

NOW_S = 1_777_000_000.5
TYPE = "t3.medium"
ALL_READ = {
    "queue_depth": 3.0,
    "running_jobs": 2.0,
    "gpu_utilization": 42.0,
    "cpu_utilization": 10.0,
    "spot_price_usd_per_hour": 0.3,
    "on_demand_price_usd_per_hour": 1.0,
}
FAILED = Reading.absent("failed", "ThrottlingException: slow down")


def settings(*regions: str, weights: Weights = DEFAULT_WEIGHTS) -> ScoreRegionsSettings:
    return ScoreRegionsSettings(
        region_scores_table="RegionScores",
        regions=tuple(Region(name=name, nats_url=f"tls://{name}:4222") for name in regions),
        scored_instance_types=(TYPE,),
        weights=weights,
        score_ttl_s=3600,
    )


def readings(
    region: str, values: Mapping[str, float], **others: Reading
) -> dict[SignalKey, Reading]:
    """One region's readings: the values, dated ten seconds ago, and the others as they are."""
    named = {name: Reading.of(value, observed_at_s=NOW_S - 10) for name, value in values.items()}
    return {
        SignalKey(name, region, TYPE if "price" in name else None): reading
        for name, reading in (named | others).items()
    }


def rows_of(
    settings: ScoreRegionsSettings, readings: Mapping[SignalKey, Reading]
) -> dict[tuple[str, str], ScoreRow]:
    rows = score_rows(settings, readings, sweep_id="sweep-1", computed_at_s=NOW_S)
    return {(row.instance_type, row.region): row for row in rows}


def test_each_region_has_a_row_without_a_type_and_one_for_each_type() -> None:
    rows = rows_of(
        settings("us-east-1", "eu-west-1"),
        readings("us-east-1", ALL_READ) | readings("eu-west-1", ALL_READ),
    )

    assert set(rows) == {
        (instance_type, region)
        for instance_type in (ANY_TYPE, TYPE)
        for region in ("us-east-1", "eu-west-1")
    }


def test_a_rows_scores_are_those_of_the_scoring_rules() -> None:
    rows = rows_of(settings("us-east-1"), readings("us-east-1", ALL_READ))

    assert rows[ANY_TYPE, "us-east-1"].score == simple_score(3, 42, 2, 0)
    assert rows[TYPE, "us-east-1"].score == weighted_score(
        RegionSignals(
            spot_placement=0,
            spot_price_ratio=0.3,
            queue_depth=3,
            gpu_utilization=42,
            running_jobs=2,
            capacity_block_trend=-1,
        )
    )


def test_the_configured_weights_count() -> None:
    price_alone = Weights(
        spot_placement=0,
        spot_price_ratio=1,
        queue_depth=0,
        gpu_utilization=0,
        running_jobs=0,
        capacity_block_trend=0,
    )
    rows = rows_of(settings("us-east-1", weights=price_alone), readings("us-east-1", ALL_READ))

    assert rows[TYPE, "us-east-1"].score == pytest.approx(0.3)


def test_a_row_says_which_sweep_made_it_when_and_until_when_it_is_kept() -> None:
    row = rows_of(settings("us-east-1"), readings("us-east-1", ALL_READ))[TYPE, "us-east-1"]

    assert (row.sweep_id, row.computed_at_s, row.expires_at_s) == (
        "sweep-1",
        NOW_S,
        int(NOW_S) + 3600,
    )


def test_a_row_holds_every_signal_with_its_value_status_age_and_error() -> None:
    values = {name: value for name, value in ALL_READ.items() if name != "queue_depth"}
    row = rows_of(settings("us-east-1"), readings("us-east-1", values, queue_depth=FAILED))[
        TYPE, "us-east-1"
    ]

    assert row.signals["queue_depth"] == FAILED
    assert row.signals["gpu_utilization"] == Reading.of(42, observed_at_s=NOW_S - 10)
    assert row.signals["spot_price_ratio"] == Reading.of(0.3, observed_at_s=NOW_S - 10)
    assert set(row.signals) == {*ALL_READ, "spot_price_ratio"}


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
def test_unread_telemetry_is_counted_and_named(
    unread: tuple[str, ...], missing_n: int, status: str
) -> None:
    values = {name: value for name, value in ALL_READ.items() if name not in unread}
    rows = rows_of(
        settings("us-east-1"),
        readings("us-east-1", values, **dict.fromkeys(unread, FAILED)),
    )

    for row in rows.values():
        assert (row.missing_scored_signals, row.telemetry_status) == (missing_n, status)


@pytest.mark.parametrize("unread", ["spot_price_usd_per_hour", "on_demand_price_usd_per_hour"])
def test_without_either_price_the_worst_ratio_counts_and_its_error_is_kept(unread: str) -> None:
    values = {name: value for name, value in ALL_READ.items() if name != unread}
    row = rows_of(settings("us-east-1"), readings("us-east-1", values, **{unread: FAILED}))[
        TYPE, "us-east-1"
    ]

    assert row.signals["spot_price_ratio"] == FAILED
    assert row.score == weighted_score(
        RegionSignals(
            spot_placement=0,
            spot_price_ratio=1,
            queue_depth=3,
            gpu_utilization=42,
            running_jobs=2,
            capacity_block_trend=-1,
        )
    )


def test_a_ratio_is_as_old_as_the_older_price() -> None:
    values = {name: value for name, value in ALL_READ.items() if not name.startswith("on_demand")}
    yesterday = Reading.of(1.0, observed_at_s=NOW_S - 86_400)
    row = rows_of(
        settings("us-east-1"),
        readings("us-east-1", values, on_demand_price_usd_per_hour=yesterday),
    )[TYPE, "us-east-1"]

    assert row.signals["spot_price_ratio"].observed_at_s == NOW_S - 86_400


def test_a_ratio_that_overflows_is_a_failure() -> None:
    prices = {"spot_price_usd_per_hour": 1e99, "on_demand_price_usd_per_hour": 1e-99}
    row = rows_of(settings("us-east-1"), readings("us-east-1", ALL_READ | prices))[
        TYPE, "us-east-1"
    ]

    assert row.signals["spot_price_ratio"].status == "failed"


# --- reasons -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (SignalReadings(queue_depth=0), "empty queue"),
        (SignalReadings(queue_depth=3), "low queue depth (3)"),
        (SignalReadings(gpu_utilization=42), "58% GPU available"),
        (SignalReadings(gpu_utilization=79.9), "moderate GPU load"),
        (SignalReadings(running_jobs=0), "no running jobs"),
        (SignalReadings(running_jobs=4), "few running jobs (4)"),
        (SignalReadings(spot_price_ratio=0.3), "good spot savings (70% off on-demand)"),
    ],
)
def test_what_speaks_for_a_region_is_said(seen: SignalReadings, reason: str) -> None:
    assert reasons_for(seen)[-1] == reason


def test_what_does_not_speak_for_a_region_is_no_reason() -> None:
    busy = SignalReadings(
        queue_depth=5, gpu_utilization=80, cpu_utilization=1, running_jobs=5, spot_price_ratio=0.5
    )

    assert reasons_for(busy) == ()


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        (SignalReadings(gpu_utilization=0, cpu_utilization=0), "telemetry is partial: queue"),
        (SignalReadings(queue_depth=0), "telemetry is partial: GPU, CPU"),
        (SignalReadings(running_jobs=0), "no telemetry"),
    ],
)
def test_telemetry_that_was_not_read_is_named_first(seen: SignalReadings, first: str) -> None:
    assert reasons_for(seen)[0] == first


def test_what_was_not_read_gives_no_other_reason() -> None:
    assert reasons_for(SignalReadings()) == ("no telemetry",)
