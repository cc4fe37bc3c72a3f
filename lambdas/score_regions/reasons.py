"""Say in a few words why a region scores as it does. An unread signal gives no reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.scoring import SignalReadings

SHORT_QUEUE = 5  # jobs
FEW_JOBS = 5
IDLE_GPU_PERCENT = 50
MODERATE_GPU_PERCENT = 80
GOOD_PRICE_RATIO = 0.5


def reasons_for(readings: SignalReadings) -> tuple[str, ...]:
    """Name what speaks for a region, after what could not be seen of it."""
    return (*_telemetry(readings), *_load(readings), *_price(readings))


def _telemetry(readings: SignalReadings) -> Iterator[str]:
    signals = {
        "queue": readings.queue_depth,
        "GPU": readings.gpu_utilization,
        "CPU": readings.cpu_utilization,
    }
    unread = [name for name, value in signals.items() if value is None]
    if len(unread) == len(signals):
        yield "no telemetry"
    elif unread:
        yield f"telemetry is partial: {', '.join(unread)}"


def _load(readings: SignalReadings) -> Iterator[str]:
    queue = readings.queue_depth
    if queue is not None and queue < SHORT_QUEUE:
        yield "empty queue" if queue <= 0 else f"low queue depth ({queue:.0f})"
    gpu = readings.gpu_utilization
    if gpu is not None and gpu < IDLE_GPU_PERCENT:
        yield f"{100 - max(gpu, 0):.0f}% GPU available"
    elif gpu is not None and gpu < MODERATE_GPU_PERCENT:
        yield "moderate GPU load"
    jobs = readings.running_jobs
    if jobs is not None and jobs < FEW_JOBS:
        yield "no running jobs" if jobs <= 0 else f"few running jobs ({jobs:.0f})"


def _price(readings: SignalReadings) -> Iterator[str]:
    ratio = readings.spot_price_ratio
    if ratio is not None and ratio < GOOD_PRICE_RATIO:
        yield f"good spot savings ({100 * (1 - ratio):.0f}% off on-demand)"
