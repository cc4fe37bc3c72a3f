"""How good a region is to launch in: signals to terms, terms to a score. Lower is better.

This package owns the direction, range, worst value and default weight of every scored signal,
and what stands in for one that could not be read. It is pure: standard library and msgspec only.

The rule it keeps (I9): a signal that fails never improves a region's rank. Source: ADR 0002.
"""

from fleetcast.scoring.readings import Reading, SignalStatus
from fleetcast.scoring.scores import (
    DEFAULT_WEIGHTS,
    OPTIONAL_WEIGHTS,
    ScoreTerm,
    Weights,
    score_terms,
    simple_score,
    simple_score_of,
    weighted_score,
    with_worst_for_missing,
)
from fleetcast.scoring.signals import (
    COUNT_LIMIT,
    OBSERVED_SIGNALS,
    SCALES,
    SCORED_TELEMETRY_SIGNALS,
    RegionSignals,
    SignalReadings,
    SignalScale,
    TelemetryStatus,
)
from fleetcast.scoring.trends import (
    CAPACITY_BLOCK_WEEKS,
    PriceDirection,
    PriceTrend,
    capacity_block_trend,
    observed_block_trend,
    price_change_per_week,
    price_trend,
)

__all__ = [
    "CAPACITY_BLOCK_WEEKS",
    "COUNT_LIMIT",
    "DEFAULT_WEIGHTS",
    "OBSERVED_SIGNALS",
    "OPTIONAL_WEIGHTS",
    "SCALES",
    "SCORED_TELEMETRY_SIGNALS",
    "PriceDirection",
    "PriceTrend",
    "Reading",
    "RegionSignals",
    "ScoreTerm",
    "SignalReadings",
    "SignalScale",
    "SignalStatus",
    "TelemetryStatus",
    "Weights",
    "capacity_block_trend",
    "observed_block_trend",
    "price_change_per_week",
    "price_trend",
    "score_terms",
    "simple_score",
    "simple_score_of",
    "weighted_score",
    "with_worst_for_missing",
]
