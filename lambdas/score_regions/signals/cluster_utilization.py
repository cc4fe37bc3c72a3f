"""How busy a region's cluster is: CloudWatch's Container Insights."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lambdas.region_scores import Reading
from lambdas.score_regions.collection import Probe, SignalKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_cloudwatch.type_defs import MetricDataQueryTypeDef

    from lambdas.region_scores import SignalStatus
    from lambdas.score_regions.clients import AwsClients
    from lambdas.settings import Region

NAMESPACE = "ContainerInsights"
METRICS = {"gpu_utilization": "node_gpu_utilization", "cpu_utilization": "node_cpu_utilization"}
PERIOD_S = 60  # Container Insights publishes each minute
# Datapoints may come minutes late. An older one says nothing about now.
LOOK_BACK = timedelta(minutes=10)

# What GetMetricData says of a single metric; the other codes are good.
STATUS_BY_CODE: dict[str, SignalStatus] = {"InternalError": "failed", "Forbidden": "refused"}


def cluster_utilization_probe(region: Region, clients: AwsClients, *, now_s: float) -> Probe:
    """Read gpu_utilization and cpu_utilization (percent) of a region, both in one call."""
    keys = {signal: SignalKey(signal, region.name) for signal in METRICS}

    def read() -> dict[SignalKey, Reading]:
        if region.cluster_name is None:
            absent = Reading.absent("not_offered", "the region has no cluster")
            return dict.fromkeys(keys.values(), absent)
        readings = _newest_datapoints(
            clients, region.name, region.cluster_name, now=datetime.fromtimestamp(now_s, UTC)
        )
        return {keys[signal]: reading for signal, reading in readings.items()}

    return Probe(name=f"utilisation of {region.name}", expects=tuple(keys.values()), read=read)


def _newest_datapoints(
    clients: AwsClients, region_name: str, cluster_name: str, *, now: datetime
) -> dict[str, Reading]:
    pages = (
        clients.cloudwatch(region_name)
        .get_paginator("get_metric_data")
        .paginate(
            MetricDataQueries=[_query(signal, cluster_name) for signal in METRICS],
            StartTime=now - LOOK_BACK,
            EndTime=now,
        )
    )
    datapoints: defaultdict[str, list[tuple[datetime, float]]] = defaultdict(list)
    errors: dict[str, Reading] = {}
    for page in pages:
        for result in page["MetricDataResults"]:
            signal = result["Id"]
            # They come in no promised order.
            datapoints[signal] += zip(result["Timestamps"], result["Values"], strict=True)
            code = result.get("StatusCode", "Complete")
            if code in STATUS_BY_CODE:
                words = [message["Value"] for message in result.get("Messages", [])]
                errors[signal] = Reading.absent(STATUS_BY_CODE[code], " ".join([code, *words]))
    return {signal: errors.get(signal) or _newest(datapoints[signal]) for signal in METRICS}


def _newest(datapoints: Sequence[tuple[datetime, float]]) -> Reading:
    if not datapoints:
        return Reading.absent("missing", f"no datapoint within {LOOK_BACK}")
    observed_at, value = max(datapoints)
    return Reading.of(value, observed_at_s=observed_at.timestamp())


def _query(signal: str, cluster_name: str) -> MetricDataQueryTypeDef:
    return {
        "Id": signal,
        "MetricStat": {
            "Metric": {
                "Namespace": NAMESPACE,
                "MetricName": METRICS[signal],
                "Dimensions": [{"Name": "ClusterName", "Value": cluster_name}],
            },
            "Period": PERIOD_S,
            "Stat": "Average",
        },
    }
