"""Readings to scores: what follows from several readings, and what counts of each.

Pure: the time comes in as an argument.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.score_history import PastScore, SweepRecord
from fleetcast.scoring import (
    OBSERVED_SIGNALS,
    Reading,
    SignalReadings,
    observed_block_trend,
    simple_score_of,
    weighted_score,
    with_worst_for_missing,
)
from lambdas.region_scores import ANY_TYPE, RegionSweep, ScoreRow
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.memory import encode_memory
from lambdas.score_regions.reasons import reasons_for
from lambdas.score_regions.signals.capacity_blocks import OFFERS
from lambdas.score_regions.signals.on_demand_prices import ON_DEMAND_PRICE
from lambdas.score_regions.signals.region_metrics import JOBS_STARTED
from lambdas.score_regions.signals.spot_prices import SPOT_PRICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.scoring import Weights
    from lambdas.score_regions.memory import RegionMemory
    from lambdas.settings import ScoreRegionsSettings

SPOT_PRICE_RATIO: Final = "spot_price_ratio"
BLOCK_TREND: Final = "capacity_block_trend"
AVERAGE_WAIT: Final = "average_wait_s"
# A slope over less says more about the days than about the trend.
LEAST_BLOCK_DAYS: Final = 14


def score_region(
    settings: ScoreRegionsSettings,
    region: str,
    readings: Mapping[SignalKey, Reading],
    memory: RegionMemory,
    *,
    sweep_id: str,
    computed_at_s: float,
) -> RegionSweep:
    """Score a region without a type and for each scored type: all that is written of a sweep.

    readings: of this region, one for each signal that is collected. memory: after this sweep.
    computed_at_s: epoch seconds.
    """
    rows: list[ScoreRow] = []
    past: dict[str, PastScore] = {}
    by_type: defaultdict[str | None, dict[str, Reading]] = defaultdict(dict)
    for key, reading in readings.items():
        by_type[key.instance_type][key.signal] = reading
    for instance_type in dict.fromkeys((ANY_TYPE, *settings.scored_instance_types)):
        signals = by_type[None] | by_type[instance_type]
        signals |= _derived(region, instance_type, signals, memory)
        past[instance_type] = score = _score(instance_type, signals, settings.weights)
        rows.append(
            ScoreRow(
                instance_type=instance_type,
                region=region,
                score=score.score,
                missing_scored_signals=score.missing_scored_signals,
                telemetry_status=score.telemetry_status,
                signals=signals,
                reasons=reasons_for(instance_type, signals),
                computed_at_s=computed_at_s,
                sweep_id=sweep_id,
                expires_at_s=int(computed_at_s + settings.score_ttl_s),
            )
        )
    kept_until_s = int(computed_at_s + settings.history_ttl_s)
    return RegionSweep(
        rows=rows,
        memory=encode_memory(memory),
        memory_expires_at_s=kept_until_s,
        record=SweepRecord(
            region=region, sweep_id=sweep_id, computed_at_s=computed_at_s, scores=past
        ),
        record_expires_at_s=kept_until_s,
    )


def _score(instance_type: str, signals: Mapping[str, Reading], weights: Weights) -> PastScore:
    readings = SignalReadings(
        **{name: signals[name].counted for name in OBSERVED_SIGNALS if name in signals},
        not_offered=frozenset(
            name for name, reading in signals.items() if reading.status == "not_offered"
        ),
    )
    counted = None if instance_type == ANY_TYPE else with_worst_for_missing(readings)
    return PastScore(
        simple_score_of(readings) if counted is None else weighted_score(counted, weights),
        readings.missing_scored_signals,
        readings.telemetry_status,
        counted,
    )


# --- what follows from several readings ----------------------------------------------------


def _derived(
    region: str, instance_type: str, signals: Mapping[str, Reading], memory: RegionMemory
) -> dict[str, Reading]:
    wait = _average_wait(signals["queue_depth"], signals.get(JOBS_STARTED))
    if instance_type == ANY_TYPE:
        return {AVERAGE_WAIT: wait}
    offers_by_day = memory.values_over_time(SignalKey(OFFERS, region, instance_type))
    return {
        AVERAGE_WAIT: wait,
        SPOT_PRICE_RATIO: _ratio(signals[SPOT_PRICE], signals[ON_DEMAND_PRICE]),
        BLOCK_TREND: _block_trend(signals.get(OFFERS), offers_by_day),
    }


def _average_wait(depth: Reading, started_per_minute: Reading | None) -> Reading:
    """Estimate how long a job waits, by Little's law: jobs waiting over jobs started."""
    started_per_minute = started_per_minute or Reading.absent(
        "missing", "not known how many jobs are started"
    )
    for reading in (depth, started_per_minute):
        if reading.status != "ok":
            return Reading.absent(reading.status, reading.error or reading.status)
    waiting, started = depth.value or 0.0, started_per_minute.value or 0.0
    observed_at_s = started_per_minute.observed_at_s or 0.0
    if waiting > 0 and started <= 0:
        return Reading.absent("missing", "jobs wait, and none is started")
    wait_s = waiting / started * 60 if waiting > 0 else 0.0
    return Reading.of(wait_s, observed_at_s=observed_at_s)


def _ratio(spot: Reading, on_demand: Reading) -> Reading:
    """Relate two prices; what kept either from being read keeps the ratio from it."""
    if spot.value is None:
        return spot
    if on_demand.value is None or spot.observed_at_s is None or on_demand.observed_at_s is None:
        return on_demand
    ratio = Reading.of(
        spot.value / on_demand.value,
        observed_at_s=min(spot.observed_at_s, on_demand.observed_at_s),
    )
    unread = next((price for price in (spot, on_demand) if price.status != "ok"), None)
    if unread is None or ratio.value is None:
        return ratio
    return msgspec.structs.replace(ratio, status=unread.status, error=unread.error)


def _block_trend(offers: Reading | None, by_day: Mapping[int, float]) -> Reading:
    """Return the trend of what was on offer from day to day, neutral until that can be told."""
    if offers is None:
        return _neutral("EC2 sells capacity blocks of p and trn types only")
    if offers.status != "ok" or offers.observed_at_s is None:
        return Reading.absent(offers.status, offers.error or offers.status)
    if len(by_day) < LEAST_BLOCK_DAYS:
        return _neutral(f"neutral until observed on {LEAST_BLOCK_DAYS} days, {len(by_day)} so far")
    return Reading.of(observed_block_trend(by_day), observed_at_s=offers.observed_at_s)


def _neutral(why: str) -> Reading:
    return Reading(value=0.0, status="not_offered", error=why)
