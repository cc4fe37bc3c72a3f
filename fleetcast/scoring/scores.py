"""Weights, the terms of a score, and what stands in for a signal that was not read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import InvalidSignal, InvalidWeights
from fleetcast.scoring.numbers import is_finite, require_finite
from fleetcast.scoring.signals import (
    SCALES,
    SCORED_TELEMETRY_SIGNALS,
    RegionSignals,
    SignalReadings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SCORE_DECIMALS = 4
WEIGHT_SUM_TOLERANCE = 1e-6

# What is scored only if it is given weight; a mapping of weights may leave it out.
OPTIONAL_WEIGHTS: Final = frozenset({"fleet_capacity", "spot_price_trend"})


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What share of the score each signal has: finite, >= 0, with a sum of 1 (within 1e-6).

    Raises InvalidWeights, naming the key that is wrong.
    """

    spot_placement: float
    spot_price_ratio: float
    queue_depth: float
    gpu_utilization: float
    running_jobs: float
    capacity_block_trend: float
    fleet_capacity: float = 0.0
    spot_price_trend: float = 0.0

    def __post_init__(self) -> None:
        for signal in SCALES:
            weight = getattr(self, signal)
            if not is_finite(weight) or weight < 0:
                raise InvalidWeights(
                    f"weight {signal} is {weight!r}; expected a finite number >= 0"
                )
        total = math.fsum(getattr(self, signal) for signal in SCALES)
        if abs(total - 1) > WEIGHT_SUM_TOLERANCE:
            raise InvalidWeights(f"the weights {', '.join(SCALES)} sum to {total:g}; expected 1")

    @classmethod
    def from_mapping(cls, weights: Mapping[str, float]) -> Weights:
        """Read weights from configuration; all but OPTIONAL_WEIGHTS must be there, and no other.

        Raises InvalidWeights, naming the key that is unknown, absent or wrong.
        """
        expected = ", ".join(SCALES)
        for key in weights:
            if key not in SCALES:
                raise InvalidWeights(f"weight {key!r} is unknown; expected {expected}")
        for signal in SCALES:
            if signal not in weights and signal not in OPTIONAL_WEIGHTS:
                raise InvalidWeights(f"weight {signal} is missing; expected {expected}")
        return cls(**weights)


DEFAULT_WEIGHTS = Weights(
    spot_placement=0.25,
    spot_price_ratio=0.20,
    queue_depth=0.20,
    gpu_utilization=0.15,
    running_jobs=0.10,
    capacity_block_trend=0.10,
)

# --- scores --------------------------------------------------------------------------------


class ScoreTerm(msgspec.Struct, frozen=True):
    """One signal's part of a weighted score.

    value: the signal, within its range. penalty: 0-1. weight: 0-1.
    """

    signal: str
    value: float
    penalty: float
    weight: float

    @property
    def contribution(self) -> float:
        """What this term adds to the score, 0 to its weight."""
        return self.weight * self.penalty


def score_terms(
    signals: RegionSignals, weights: Weights = DEFAULT_WEIGHTS
) -> tuple[ScoreTerm, ...]:
    """Return the terms whose contributions sum to the weighted score, in the weights' order."""
    terms = []
    for signal, scale in SCALES.items():
        value = scale.clamp(getattr(signals, signal))
        terms.append(ScoreTerm(signal, value, scale.penalty(value), getattr(weights, signal)))
    return tuple(terms)


def weighted_score(signals: RegionSignals, weights: Weights = DEFAULT_WEIGHTS) -> float:
    """Score a region for one instance type: 0 (best) to 1, rounded to four places."""
    total = math.fsum(term.contribution for term in score_terms(signals, weights))
    return round(total, SCORE_DECIMALS)


def simple_score(
    queue_depth: float,
    gpu_utilization: float,
    running_jobs: float,
    missing_scored_signals: int,
) -> float:
    """Score a region without regard to an instance type: >= 0, lower is better.

    Units and ranges as in RegionSignals; of queue depth and GPU utilisation, pass 0 for one that
    could not be read and count it in missing_scored_signals (0-2), which then outweighs it.
    Raises InvalidSignal for what is not a finite number or a count out of its range.
    """
    if missing_scored_signals not in range(SCORED_TELEMETRY_SIGNALS + 1):
        raise InvalidSignal(
            f"missing_scored_signals is {missing_scored_signals!r}; expected 0, 1 or 2"
        )
    queue = SCALES["queue_depth"].clamp(require_finite("queue_depth", queue_depth))
    gpu = SCALES["gpu_utilization"].clamp(require_finite("gpu_utilization", gpu_utilization))
    jobs = SCALES["running_jobs"].clamp(require_finite("running_jobs", running_jobs))
    return round(10 * queue + gpu + 5 * jobs + 1000 * missing_scored_signals, SCORE_DECIMALS)


# --- what was not read ---------------------------------------------------------------------


def with_worst_for_missing(readings: SignalReadings) -> RegionSignals:
    """Let the worst value stand in for every signal without a value.

    So a region whose signal fails scores no better than with any value the signal could have had.
    """
    read = {signal: getattr(readings, signal) for signal in SCALES}
    return RegionSignals(
        **{
            signal: SCALES[signal].worst if value is None else value
            for signal, value in read.items()
        }
    )


def simple_score_of(readings: SignalReadings) -> float:
    """Return the simple score of what was read, by the same rule as with_worst_for_missing.

    Queue depth and GPU utilisation have their own penalty when unread, which also orders regions
    before the score does; running jobs have none, so the worst value stands in.
    """
    counted = with_worst_for_missing(readings)
    return simple_score(
        queue_depth=0 if readings.is_unread("queue_depth") else counted.queue_depth,
        gpu_utilization=0 if readings.is_unread("gpu_utilization") else counted.gpu_utilization,
        running_jobs=counted.running_jobs,
        missing_scored_signals=readings.missing_scored_signals,
    )
