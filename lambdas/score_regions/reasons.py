"""Say in a few words why a region scores as it does. An unread signal gives no reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lambdas.region_scores import ANY_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fleetcast.scoring import Reading

HIGH_PLACEMENT: Final = 0.7
MODERATE_PLACEMENT: Final = 0.4
GOOD_PRICE_RATIO: Final = 0.5
SHORT_QUEUE: Final = 5  # jobs
FEW_JOBS: Final = 5
IDLE_GPU_PERCENT: Final = 50
MODERATE_GPU_PERCENT: Final = 80
NOTABLE_TREND: Final = 0.2

TELEMETRY: Final = {"queue": "queue_depth", "GPU": "gpu_utilization", "CPU": "cpu_utilization"}


def reasons_for(instance_type: str, signals: Mapping[str, Reading]) -> tuple[str, ...]:
    """Name what speaks for or against a region, after what could not be seen of it.

    instance_type: what the score is for, or ANY_TYPE.
    """
    read = {
        name: reading.value
        for name, reading in signals.items()
        if reading.status == "ok" and reading.value is not None
    }
    load = _load(read, moderate_gpu=instance_type == ANY_TYPE)
    return (*_telemetry(signals), *load, *_market(read))


def _telemetry(signals: Mapping[str, Reading]) -> Iterator[str]:
    unread = [
        word
        for word, name in TELEMETRY.items()
        if signals[name].counted is None and signals[name].status != "not_offered"
    ]
    if len(unread) == len(TELEMETRY):
        yield "no telemetry"
    elif unread:
        yield f"telemetry is partial: {', '.join(unread)}"


def _load(read: Mapping[str, float], *, moderate_gpu: bool) -> Iterator[str]:
    queue = read.get("queue_depth")
    if queue is not None and queue < SHORT_QUEUE:
        yield "empty queue" if queue <= 0 else f"low queue depth ({queue:.0f})"
    gpu = read.get("gpu_utilization")
    if gpu is not None and gpu < IDLE_GPU_PERCENT:
        yield f"{100 - max(gpu, 0):.0f}% GPU available"
    elif gpu is not None and gpu < MODERATE_GPU_PERCENT and moderate_gpu:
        yield "moderate GPU load"
    jobs = read.get("running_jobs")
    if jobs is not None and jobs < FEW_JOBS:
        yield "no running jobs" if jobs <= 0 else f"few running jobs ({jobs:.0f})"


def _market(read: Mapping[str, float]) -> Iterator[str]:
    placement = read.get("spot_placement")
    if placement is not None and placement >= MODERATE_PLACEMENT:
        level = "high" if placement >= HIGH_PLACEMENT else "moderate"
        yield f"{level} spot placement score ({placement:.1f})"
    ratio = read.get("spot_price_ratio")
    if ratio is not None and ratio < GOOD_PRICE_RATIO:
        yield f"good spot savings ({100 * (1 - ratio):.0f}% off on-demand)"
    trend = read.get("capacity_block_trend")
    if trend is not None and abs(trend) > NOTABLE_TREND:
        yield f"capacity blocks trending {'up' if trend > 0 else 'down'}"
