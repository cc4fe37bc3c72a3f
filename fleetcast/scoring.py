"""How good a region is to launch in: signals to terms, terms to a score. Lower is better.

This module owns the direction, range, worst value and default weight of every scored signal,
and what stands in for one that could not be read. It is pure: standard library and msgspec only.

The rule it keeps (I9): a signal that fails never improves a region's rank. Source: ADR 0002.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from fleetcast.errors import InvalidSignal, InvalidWeights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCORE_DECIMALS = 4
WEIGHT_SUM_TOLERANCE = 1e-6
UNUSABLY_LARGE = 1e100  # as good as infinite: beyond it, sums and products could overflow

# A larger count scores as this one does: the penalty is within 1e-8 of its limit by then, and
# an unread count needs a finite value that no real one exceeds.
COUNT_LIMIT = 1e9

SCORED_TELEMETRY_SIGNALS = 2  # queue depth and GPU utilisation: the ones that count as missing

TelemetryStatus = Literal["complete", "partial", "unavailable"]
PriceDirection = Literal["rising", "stable", "falling"]


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < UNUSABLY_LARGE  # NaN is not


def _require_finite(name: str, value: float) -> float:
    if not _is_finite(value):
        raise InvalidSignal(f"{name} is {value!r}; expected a finite number")
    return value


# --- what is observed ----------------------------------------------------------------------


class RegionSignals(msgspec.Struct, frozen=True):
    """The scored signals of one region. A value outside its range counts as the nearer end.

    spot_placement: AWS's spot placement score divided by 10, 0-1, 1 is best.
    spot_price_ratio: spot price over on-demand price, 0-1, 0 is best.
    queue_depth: jobs waiting, >= 0, 0 is best.
    gpu_utilization: percent, 0-100, 0 is best.
    running_jobs: jobs in flight, >= 0, 0 is best.
    capacity_block_trend: -1 (blocks dwindle) to 1 (blocks grow), 1 is best.
    The defaults are those of a region with no spot market and no load.
    Raises InvalidSignal for what is not a finite number.
    """

    spot_placement: float = 0.0
    spot_price_ratio: float = 1.0
    queue_depth: float = 0.0
    gpu_utilization: float = 0.0
    running_jobs: float = 0.0
    capacity_block_trend: float = 0.0

    def __post_init__(self) -> None:
        for signal in SCALES:
            _require_finite(signal, getattr(self, signal))


class SignalReadings(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep read of one region, units as in RegionSignals; None is "could not be read".

    cpu_utilization (percent, 0-100) is observed but not scored.
    Raises InvalidSignal for what is neither None nor a finite number.
    """

    spot_placement: float | None = None
    spot_price_ratio: float | None = None
    queue_depth: float | None = None
    gpu_utilization: float | None = None
    running_jobs: float | None = None
    capacity_block_trend: float | None = None
    cpu_utilization: float | None = None

    def __post_init__(self) -> None:
        for signal in self.__struct_fields__:
            value = getattr(self, signal)
            if value is not None:
                _require_finite(signal, value)

    @property
    def missing_scored_signals(self) -> int:
        """How many of queue depth and GPU utilisation could not be read: 0, 1 or 2."""
        return (self.queue_depth, self.gpu_utilization).count(None)

    @property
    def telemetry_status(self) -> TelemetryStatus:
        """Whether all of queue depth, GPU and CPU utilisation were read, some, or none."""
        telemetry = (self.queue_depth, self.gpu_utilization, self.cpu_utilization)
        if None not in telemetry:
            return "complete"
        return "unavailable" if telemetry.count(None) == len(telemetry) else "partial"


# --- direction and range of each signal ----------------------------------------------------


class SignalScale(msgspec.Struct, frozen=True):
    """How one signal counts: its range, its worst value, and its penalty in [0, 1], 0 is best."""

    lowest: float
    highest: float
    worst: float
    penalty: Callable[[float], float]

    def clamp(self, value: float) -> float:
        """Return the value in this signal's range that is nearest to the given one."""
        return float(min(max(value, self.lowest), self.highest))


def _count_scale(*, half_at: int) -> SignalScale:
    """Scale a count of jobs; half_at is the count that costs 0.5."""
    return SignalScale(0, COUNT_LIMIT, COUNT_LIMIT, lambda count: count / (count + half_at))


SCALES: Mapping[str, SignalScale] = {
    "spot_placement": SignalScale(0, 1, 0, lambda placement: 1 - placement),
    "spot_price_ratio": SignalScale(0, 1, 1, lambda ratio: ratio),
    "queue_depth": _count_scale(half_at=10),
    "gpu_utilization": SignalScale(0, 100, 100, lambda percent: percent / 100),
    "running_jobs": _count_scale(half_at=20),
    "capacity_block_trend": SignalScale(-1, 1, -1, lambda trend: (1 - trend) / 2),
}


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

    def __post_init__(self) -> None:
        for signal in SCALES:
            weight = getattr(self, signal)
            if not _is_finite(weight) or weight < 0:
                raise InvalidWeights(
                    f"weight {signal} is {weight!r}; expected a finite number >= 0"
                )
        total = math.fsum(getattr(self, signal) for signal in SCALES)
        if abs(total - 1) > WEIGHT_SUM_TOLERANCE:
            raise InvalidWeights(f"the weights {', '.join(SCALES)} sum to {total:g}; expected 1")

    @classmethod
    def from_mapping(cls, weights: Mapping[str, float]) -> Weights:
        """Read weights from configuration; all six keys must be there, and no other.

        Raises InvalidWeights, naming the key that is unknown, absent or wrong.
        """
        expected = ", ".join(SCALES)
        for key in weights:
            if key not in SCALES:
                raise InvalidWeights(f"weight {key!r} is unknown; expected {expected}")
        for signal in SCALES:
            if signal not in weights:
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
    queue = SCALES["queue_depth"].clamp(_require_finite("queue_depth", queue_depth))
    gpu = SCALES["gpu_utilization"].clamp(_require_finite("gpu_utilization", gpu_utilization))
    jobs = SCALES["running_jobs"].clamp(_require_finite("running_jobs", running_jobs))
    return round(10 * queue + gpu + 5 * jobs + 1000 * missing_scored_signals, SCORE_DECIMALS)


# --- what was not read ---------------------------------------------------------------------


def with_worst_for_missing(readings: SignalReadings) -> RegionSignals:
    """Let the worst value stand in for every signal that could not be read.

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
    return simple_score(
        queue_depth=readings.queue_depth or 0,
        gpu_utilization=readings.gpu_utilization or 0,
        running_jobs=with_worst_for_missing(readings).running_jobs,
        missing_scored_signals=readings.missing_scored_signals,
    )


# --- trends --------------------------------------------------------------------------------

CAPACITY_BLOCK_WEEKS = 26
STABLE_PRICE_BAND = 0.05  # a relative slope per step within it is "stable"
MIN_POINTS = 2  # fewer make no line


class PriceTrend(msgspec.Struct, frozen=True):
    """How a price moved over a series.

    slope: price units per step, positive when it rises. normalized_slope: slope over the mean
    price, -1 to 1. price_changes: steps at which the price differs from the one before.
    """

    slope: float
    normalized_slope: float
    price_changes: int
    direction: PriceDirection


def price_trend(prices: Sequence[float]) -> PriceTrend:
    """Fit a line to a series of prices, newest first and evenly spaced; slopes to four places.

    A series that is shorter than two or whose mean isn't positive has no slope.
    Raises InvalidSignal for a price that is not a finite number.
    """
    for price in prices:
        _require_finite("price", price)
    if len(prices) < MIN_POINTS:
        return PriceTrend(0.0, 0.0, 0, "stable")
    changes = sum(newer != older for newer, older in pairwise(prices))
    mean = math.fsum(prices) / len(prices)
    if mean <= 0:
        return PriceTrend(0.0, 0.0, changes, "stable")
    slope = _least_squares_slope(prices[::-1])
    normalized = round(min(max(slope / mean, -1.0), 1.0), 4)
    direction: PriceDirection = "stable"
    if abs(normalized) > STABLE_PRICE_BAND:
        direction = "rising" if normalized > 0 else "falling"
    return PriceTrend(round(slope, 4), normalized, changes, direction)


def capacity_block_trend(weekly_counts: Sequence[float]) -> float:
    """Tell whether capacity block offerings grow or dwindle over the weeks: 1 to -1.

    weekly_counts: offerings per week, earliest first, over CAPACITY_BLOCK_WEEKS weeks; a negative
    count is 0. Returns the least-squares change over half that span relative to the mean week,
    and 0 when fewer than two weeks have any.
    Raises InvalidSignal for a count that is not a finite number.
    """
    counts = [max(0.0, _require_finite("weekly count", count)) for count in weekly_counts]
    if sum(count > 0 for count in counts) < MIN_POINTS:
        return 0.0
    mean = math.fsum(counts) / len(counts)
    change = _least_squares_slope(counts) * CAPACITY_BLOCK_WEEKS / (2 * mean)
    return round(min(max(change, -1.0), 1.0), 4)


def _least_squares_slope(values: Sequence[float]) -> float:
    """Return the slope per step of the line through at least two evenly spaced values."""
    middle = (len(values) - 1) / 2
    covariance = math.fsum((step - middle) * value for step, value in enumerate(values))
    return covariance / math.fsum((step - middle) ** 2 for step in range(len(values)))
