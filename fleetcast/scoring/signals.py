"""What is observed of a region, and how each signal counts: direction, range, worst value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from fleetcast.scoring.numbers import require_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

# A larger count scores as this one does: the penalty is within 1e-8 of its limit by then, and
# an unread count needs a finite value that no real one exceeds.
COUNT_LIMIT = 1e9

SCORED_TELEMETRY_SIGNALS = 2  # queue depth and GPU utilisation: the ones that count as missing

TelemetryStatus = Literal["complete", "partial", "unavailable"]


class RegionSignals(msgspec.Struct, frozen=True):
    """The scored signals of one region. A value outside its range counts as the nearer end.

    spot_placement: AWS's spot placement score divided by 10, 0-1, 1 is best.
    spot_price_ratio: spot price over on-demand price, 0-1, 0 is best.
    queue_depth: jobs waiting, >= 0, 0 is best.
    gpu_utilization: percent, 0-100, 0 is best.
    running_jobs: jobs in flight, >= 0, 0 is best.
    capacity_block_trend: -1 (blocks dwindle) to 1 (blocks grow), 1 is best.
    fleet_capacity: instances of the type that the region's nodes have room for, >= 0.
    spot_price_trend: change of the spot price a week over its mean, -1 to 1, -1 is best.
    The defaults are those of a region with no spot market, no load and no known nodes.
    Raises InvalidSignal for what is not a finite number.
    """

    spot_placement: float = 0.0
    spot_price_ratio: float = 1.0
    queue_depth: float = 0.0
    gpu_utilization: float = 0.0
    running_jobs: float = 0.0
    capacity_block_trend: float = 0.0
    fleet_capacity: float = 0.0
    spot_price_trend: float = 0.0

    def __post_init__(self) -> None:
        for signal in SCALES:
            require_finite(signal, getattr(self, signal))


class SignalReadings(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep read of one region, units as in RegionSignals; None is "no value".

    cpu_utilization (percent, 0-100) is observed but not scored. not_offered: the signals that have
    no value because there is nothing to read, as a cluster that is scaled to zero has no
    utilisation; they count as read, at their worst value (ADR 0006).
    Raises InvalidSignal for what is neither None nor a finite number.
    """

    spot_placement: float | None = None
    spot_price_ratio: float | None = None
    queue_depth: float | None = None
    gpu_utilization: float | None = None
    running_jobs: float | None = None
    capacity_block_trend: float | None = None
    fleet_capacity: float | None = None
    spot_price_trend: float | None = None
    cpu_utilization: float | None = None
    not_offered: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for signal in OBSERVED_SIGNALS:
            value = getattr(self, signal)
            if value is not None:
                require_finite(signal, value)

    @property
    def missing_scored_signals(self) -> int:
        """How many of queue depth and GPU utilisation could not be read: 0, 1 or 2."""
        return sum(map(self.is_unread, ("queue_depth", "gpu_utilization")))

    @property
    def telemetry_status(self) -> TelemetryStatus:
        """Whether all of queue depth, GPU and CPU utilisation were read, some, or none."""
        telemetry = ("queue_depth", "gpu_utilization", "cpu_utilization")
        unread_n = sum(map(self.is_unread, telemetry))
        if unread_n == 0:
            return "complete"
        return "unavailable" if unread_n == len(telemetry) else "partial"

    def is_unread(self, signal: str) -> bool:
        """Tell whether a signal should have a value, and has none."""
        return getattr(self, signal) is None and signal not in self.not_offered


class SignalScale(msgspec.Struct, frozen=True):
    """How one signal counts: its range, its worst value, and its penalty in [0, 1], 0 is best."""

    lowest: float
    highest: float
    worst: float
    penalty: Callable[[float], float]

    def clamp(self, value: float) -> float:
        """Return the value in this signal's range that is nearest to the given one."""
        return float(min(max(value, self.lowest), self.highest))


def _load_scale(*, half_at: int) -> SignalScale:
    """Scale a count of jobs; half_at is the count that costs 0.5."""
    return SignalScale(0, COUNT_LIMIT, COUNT_LIMIT, lambda count: count / (count + half_at))


def _room_scale(*, half_at: int) -> SignalScale:
    """Scale a count of free places; half_at is the count that costs 0.5."""
    return SignalScale(0, COUNT_LIMIT, 0, lambda count: half_at / (count + half_at))


SCALES: Mapping[str, SignalScale] = {
    "spot_placement": SignalScale(0, 1, 0, lambda placement: 1 - placement),
    "spot_price_ratio": SignalScale(0, 1, 1, lambda ratio: ratio),
    "queue_depth": _load_scale(half_at=10),
    "gpu_utilization": SignalScale(0, 100, 100, lambda percent: percent / 100),
    "running_jobs": _load_scale(half_at=20),
    "capacity_block_trend": SignalScale(-1, 1, -1, lambda trend: (1 - trend) / 2),
    "fleet_capacity": _room_scale(half_at=10),
    "spot_price_trend": SignalScale(-1, 1, 1, lambda trend: (1 + trend) / 2),
}

OBSERVED_SIGNALS = (*SCALES, "cpu_utilization")  # what SignalReadings has values of
