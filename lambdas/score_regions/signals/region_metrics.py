"""How busy a region is: CloudWatch's metrics of its cluster and of its job queue's flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import TYPE_CHECKING, Final

from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mypy_boto3_cloudwatch.type_defs import MetricDataQueryTypeDef, MetricDataResultTypeDef

    from fleetcast.scoring import SignalStatus
    from lambdas.score_regions.clients import AwsClients
    from lambdas.settings import Region

PERIOD_S: Final = 60  # both publish each minute
# Datapoints may come minutes late. An older one says nothing about now.
LOOK_BACK: Final = timedelta(minutes=10)
WITHIN: Final = f"within {LOOK_BACK // timedelta(minutes=1)} minutes"
# A sum over the nodes is too low until all of them have published.
SETTLING: Final = timedelta(minutes=2)

UTILIZATION: Final = {
    "gpu_utilization": "node_gpu_utilization",
    "cpu_utilization": "node_cpu_utilization",
}
GPUS: Final = {"total_gpus": "node_gpu_limit", "used_gpus": "node_gpu_usage_total"}
JOBS_STARTED: Final = "jobs_started_per_minute"

CLUSTER_SIGNALS: Final = (*UTILIZATION, "total_gpus", "free_gpus")
QUEUE_SIGNALS: Final = (JOBS_STARTED,)

# What GetMetricData says of a single metric; the other codes are good.
STATUS_BY_CODE: Final[Mapping[str, SignalStatus]] = {
    "InternalError": "failed",
    "Forbidden": "refused",
}


def region_metrics_probe(
    region: Region, queue_url: str | None, clients: AwsClients, *, now_s: float
) -> Probe:
    """Read, in one call, gpu_utilization and cpu_utilization (percent), GPUs, and jobs started.

    The region has a cluster or a queue URL; of what it lacks nothing is read.
    """
    queries: list[MetricDataQueryTypeDef] = []
    signals: list[str] = []
    if region.cluster_name is not None:
        queries += _cluster_queries(region.cluster_name)
        signals += CLUSTER_SIGNALS
    if queue_url is not None:
        queries.append(_queue_query(queue_url))
        signals += QUEUE_SIGNALS
    keys = {signal: SignalKey(signal, region.name) for signal in signals}

    def read() -> dict[SignalKey, Reading]:
        now = datetime.fromtimestamp(now_s, UTC)
        pages = (
            clients.cloudwatch(region.name)
            .get_paginator("get_metric_data")
            .paginate(MetricDataQueries=queries, StartTime=now - LOOK_BACK, EndTime=now)
        )
        results = _by_metric(result for page in pages for result in page["MetricDataResults"])
        readings = _jobs_started(results, now) | _gpus(results, now) | _utilization(results)
        return {keys[name]: reading for name, reading in readings.items() if name in keys}

    return Probe(name=f"metrics of {region.name}", expects=tuple(keys.values()), read=read)


@dataclass
class _Metric:
    """All pages' datapoints of one metric, in no promised order."""

    points: dict[datetime, float] = field(default_factory=dict)
    complete: bool = True
    error: Reading | None = None

    def settled(self, now: datetime) -> dict[datetime, float]:
        return {at: value for at, value in self.points.items() if at <= now - SETTLING}


def _by_metric(results: Iterable[MetricDataResultTypeDef]) -> dict[str, _Metric]:
    metrics: dict[str, _Metric] = {}
    for result in results:
        metric = metrics.setdefault(result["Id"], _Metric())
        metric.points |= dict(zip(result["Timestamps"], result["Values"], strict=True))
        code = result.get("StatusCode", "Complete")
        metric.complete = code == "Complete"
        if code in STATUS_BY_CODE:
            words = [message["Value"] for message in result.get("Messages", [])]
            metric.error = Reading.absent(STATUS_BY_CODE[code], " ".join([code, *words]))
    return metrics


def _utilization(metrics: Mapping[str, _Metric]) -> dict[str, Reading]:
    seen = {signal: metrics[signal] for signal in UTILIZATION if signal in metrics}
    if len(seen) == len(UTILIZATION) and all(
        metric.complete and not metric.points for metric in seen.values()
    ):
        # CloudWatch has answered, and no node has published anything: there is none. One metric
        # alone without datapoints is something else, a cluster without GPUs for example.
        absent = Reading.absent("not_offered", f"scaled to zero: no datapoint {WITHIN}")
        return dict.fromkeys(CLUSTER_SIGNALS, absent)
    return {signal: _newest(metric, metric.points) for signal, metric in seen.items()}


def _gpus(metrics: Mapping[str, _Metric], now: datetime) -> dict[str, Reading]:
    if not GPUS.keys() <= metrics.keys():
        return {}
    total = _newest(metrics["total_gpus"], metrics["total_gpus"].settled(now))
    used = _newest(metrics["used_gpus"], metrics["used_gpus"].settled(now))
    if total.value is None or used.value is None or total.observed_at_s is None:
        return {"total_gpus": total, "free_gpus": total if total.value is None else used}
    free = max(0.0, total.value - used.value)
    return {"total_gpus": total, "free_gpus": Reading.of(free, observed_at_s=total.observed_at_s)}


def _jobs_started(metrics: Mapping[str, _Metric], now: datetime) -> dict[str, Reading]:
    if JOBS_STARTED not in metrics:
        return {}
    metric = metrics[JOBS_STARTED]
    points = metric.settled(now)
    newest = _newest(metric, points)
    if newest.observed_at_s is None:
        return {JOBS_STARTED: newest}
    mean = fmean(points.values())
    return {JOBS_STARTED: Reading.of(mean, observed_at_s=newest.observed_at_s)}


def _newest(metric: _Metric, points: Mapping[datetime, float]) -> Reading:
    if metric.error is not None:
        return metric.error
    if not points:
        return Reading.absent("missing", f"no datapoint {WITHIN}")
    observed_at = max(points)
    return Reading.of(points[observed_at], observed_at_s=observed_at.timestamp())


def _cluster_queries(cluster_name: str) -> list[MetricDataQueryTypeDef]:
    return [
        _query(signal, "ContainerInsights", metric, "ClusterName", cluster_name, statistic)
        for metrics, statistic in ((UTILIZATION, "Average"), (GPUS, "Sum"))
        for signal, metric in metrics.items()
    ]


def _queue_query(queue_url: str) -> MetricDataQueryTypeDef:
    queue_name = queue_url.rpartition("/")[2]
    return _query(
        JOBS_STARTED, "AWS/SQS", "NumberOfMessagesReceived", "QueueName", queue_name, "Sum"
    )


def _query(
    signal: str, namespace: str, metric: str, dimension: str, value: str, statistic: str
) -> MetricDataQueryTypeDef:
    return {
        "Id": signal,
        "MetricStat": {
            "Metric": {
                "Namespace": namespace,
                "MetricName": metric,
                "Dimensions": [{"Name": dimension, "Value": value}],
            },
            "Period": PERIOD_S,
            "Stat": statistic,
        },
    }
