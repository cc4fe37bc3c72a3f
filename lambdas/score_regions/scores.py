"""Readings to rows: each region's score without a type, and its score for each scored type.

Pure: the time comes in as an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.scoring import (
    SignalReadings,
    simple_score_of,
    weighted_score,
    with_worst_for_missing,
)
from lambdas.region_scores import ANY_TYPE, Reading, ScoreRow
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.reasons import reasons_for
from lambdas.score_regions.signals.cluster_utilization import METRICS
from lambdas.score_regions.signals.job_queue import ATTRIBUTES
from lambdas.score_regions.signals.on_demand_prices import ON_DEMAND_PRICE
from lambdas.score_regions.signals.spot_prices import SPOT_PRICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lambdas.settings import ScoreRegionsSettings

SPOT_PRICE_RATIO = "spot_price_ratio"
REGION_SIGNALS = (*ATTRIBUTES, *METRICS)
TYPE_SIGNALS = (SPOT_PRICE, ON_DEMAND_PRICE)


def score_rows(
    settings: ScoreRegionsSettings,
    readings: Mapping[SignalKey, Reading],
    *,
    sweep_id: str,
    computed_at_s: float,
) -> Iterator[ScoreRow]:
    """Yield a row for each region without a type, and for each region and scored type.

    readings: one for each signal that is collected. computed_at_s: epoch seconds.
    """
    for region in settings.regions:
        of_region = {name: readings[SignalKey(name, region.name)] for name in REGION_SIGNALS}
        for instance_type in (ANY_TYPE, *settings.scored_instance_types):
            signals = dict(of_region)
            if instance_type != ANY_TYPE:
                signals |= _type_signals(readings, region.name, instance_type)
            values = _values(signals)
            yield ScoreRow(
                instance_type=instance_type,
                region=region.name,
                score=(
                    simple_score_of(values)
                    if instance_type == ANY_TYPE
                    else weighted_score(with_worst_for_missing(values), settings.weights)
                ),
                missing_scored_signals=values.missing_scored_signals,
                telemetry_status=values.telemetry_status,
                signals=signals,
                reasons=reasons_for(values),
                computed_at_s=computed_at_s,
                sweep_id=sweep_id,
                expires_at_s=int(computed_at_s + settings.score_ttl_s),
            )


def _type_signals(
    readings: Mapping[SignalKey, Reading], region: str, instance_type: str
) -> dict[str, Reading]:
    signals = {name: readings[SignalKey(name, region, instance_type)] for name in TYPE_SIGNALS}
    return signals | {SPOT_PRICE_RATIO: _ratio(signals[SPOT_PRICE], signals[ON_DEMAND_PRICE])}


def _ratio(spot: Reading, on_demand: Reading) -> Reading:
    """Relate two prices; what kept either from being read keeps the ratio from it."""
    if spot.value is None:
        return spot
    if on_demand.value is None or spot.observed_at_s is None or on_demand.observed_at_s is None:
        return on_demand
    return Reading.of(
        spot.value / on_demand.value,
        observed_at_s=min(spot.observed_at_s, on_demand.observed_at_s),
    )


def _values(signals: Mapping[str, Reading]) -> SignalReadings:
    return SignalReadings(
        **{
            name: signals[name].value
            for name in SignalReadings.__struct_fields__
            if name in signals
        }
    )
