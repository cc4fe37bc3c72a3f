"""What a run publishes, as log lines in CloudWatch's embedded metric format.

Every name here costs money once per combination of its dimensions: room is published for the
scored types only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lambdas.reconcile.fleet import RunSummary
    from lambdas.reconcile.region import RegionSummary

NAMESPACE: Final = "fleetcast"
SERVICE: Final = "reconcile"


def publish(summary: RunSummary, instance_types: Sequence[str], *, duration_s: float) -> None:
    """Publish a run's metrics, of the fleet and of each region.

    instance_types: those whose room is published.
    """
    regions = summary.regions
    metrics = _metrics()
    # The alarm on reconcile itself: a run that failed in part counts as none.
    metrics.add_metric("RunsCompleted", MetricUnit.Count, 0 if summary.errors else 1)
    metrics.add_metric("ReconcileDuration", MetricUnit.Seconds, duration_s)
    metrics.add_metric("LaunchesResolved", MetricUnit.Count, summary.launches_resolved_n)
    metrics.add_metric("UndecidedLaunches", MetricUnit.Count, summary.undecided_launches_n)
    for name in _COUNTS:
        total = sum(_counts(region)[name] for region in regions)
        metrics.add_metric(name, MetricUnit.Count, total)
    metrics.flush_metrics()
    for region in regions:
        _publish_region(region, instance_types)


def _publish_region(region: RegionSummary, instance_types: Sequence[str]) -> None:
    metrics = _metrics(region=region.region)
    for name, count in _counts(region).items():
        metrics.add_metric(name, MetricUnit.Count, count)
    metrics.add_metric("ClockSkew", MetricUnit.Milliseconds, region.clock_skew_ms)
    metrics.flush_metrics()
    for instance_type in instance_types:
        metrics = _metrics(region=region.region, instance_type=instance_type)
        metrics.add_metric("Room", MetricUnit.Count, region.room[instance_type])
        metrics.flush_metrics()


_COUNTS: Final = (
    "UnknownInstances",
    "OrphansDestroyed",
    "OrphansHeldBack",
    "RecordsClosed",
    "SilentNodes",
)


def _counts(region: RegionSummary) -> dict[str, int]:
    return dict(
        zip(
            _COUNTS,
            (
                region.unknown_instances_n,
                region.orphans_destroyed_n,
                region.orphans_held_back_n,
                region.records_closed_n,
                region.silent_nodes_n,
            ),
            strict=True,
        )
    )


def _metrics(**dimensions: str) -> EphemeralMetrics:
    metrics = EphemeralMetrics(namespace=NAMESPACE, service=SERVICE)
    for name, value in dimensions.items():
        metrics.add_dimension(name, value)
    return metrics
