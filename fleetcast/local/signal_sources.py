"""What a sweep reads of each region: a queue of jobs, a cluster's utilisation, prices.

The queue and the datapoints are real ones in the AWS emulator; prices are the AWS fakes'.
"""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

from botocore.exceptions import UnknownRegionError

from fleetcast.local.aws_fakes.movement import Movement
from fleetcast.local.aws_fakes.plausible import plausible_scenario
from fleetcast.local.fleet import FAMILIES, SIZES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from boto3.session import Session

    from fleetcast.local.aws_fakes import Scenario

JOB_STACK: Final = "fleetcast-jobs"
CLUSTER: Final = "fleetcast"

_JOB_STACK_TEMPLATE: Final = {
    "Resources": {"Jobs": {"Type": "AWS::SQS::Queue"}},
    "Outputs": {"JobQueueUrl": {"Value": {"Ref": "Jobs"}}},
}
_UTILIZATION_PERCENT: Final = {"node_gpu_utilization": 35.0, "node_cpu_utilization": 50.0}
# A sweep takes datapoints of the last minutes only.
_PUBLISH_EVERY_S: Final = 60.0
_BATCH: Final = 10

_NANO_USD_PER_HOUR: Final = {"t3": 0.0052, "m8a": 0.0076}
_MOVES_WITHIN_S: Final = 600.0
_PRICE_STANDS_S: Final = 3_600.0


class SignalSources:
    """The sources of all regions; utilisation is published while the `with` block runs.

    regions: those that AWS can have; for any other there is nothing to read.
    """

    def __init__(self, session: Session, endpoint_url: str, regions: Iterable[str]) -> None:
        self._session = session
        self._endpoint_url = endpoint_url
        self._regions = [region for region in regions if is_aws_region(session, region)]
        self._stopping = threading.Event()
        self._publisher = threading.Thread(target=self._keep_publishing, daemon=True)

    def __enter__(self) -> Self:
        for region in self._regions:
            cloudformation = self._session.client(
                "cloudformation", region_name=region, endpoint_url=self._endpoint_url
            )
            cloudformation.create_stack(
                StackName=JOB_STACK, TemplateBody=json.dumps(_JOB_STACK_TEMPLATE)
            )
            cloudformation.get_waiter("stack_create_complete").wait(
                StackName=JOB_STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 20}
            )
        self._publish()
        self._publisher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._publisher.join()

    def queue_jobs(self, region: str, count: int) -> None:
        """Put that many jobs into a region's queue."""
        cloudformation = self._session.client(
            "cloudformation", region_name=region, endpoint_url=self._endpoint_url
        )
        [stack] = cloudformation.describe_stacks(StackName=JOB_STACK)["Stacks"]
        [output] = stack["Outputs"]
        sqs = self._session.client("sqs", region_name=region, endpoint_url=self._endpoint_url)
        for first in range(0, count, _BATCH):
            sqs.send_message_batch(
                QueueUrl=output["OutputValue"],
                Entries=[
                    {"Id": str(number), "MessageBody": f"job {number}"}
                    for number in range(first, min(first + _BATCH, count))
                ],
            )

    def _keep_publishing(self) -> None:
        while not self._stopping.wait(_PUBLISH_EVERY_S):
            self._publish()

    def _publish(self) -> None:
        for region in self._regions:
            cloudwatch = self._session.client(
                "cloudwatch", region_name=region, endpoint_url=self._endpoint_url
            )
            cloudwatch.put_metric_data(
                Namespace="ContainerInsights",
                MetricData=[
                    {
                        "MetricName": name,
                        "Dimensions": [{"Name": "ClusterName", "Value": CLUSTER}],
                        "Timestamp": datetime.now(UTC),
                        "Value": percent,
                        "Unit": "Percent",
                    }
                    for name, percent in _UTILIZATION_PERCENT.items()
                ],
            )


def is_aws_region(session: Session, region: str) -> bool:
    """Say whether AWS can have a region of that name; local fleets may have others."""
    try:
        session.get_partition_for_region(region)
    except UnknownRegionError:
        return False
    return True


def moving_scenario(regions: Iterable[str]) -> Scenario:
    """Return what the fakes know of the regions: each size costs twice the one before.

    Prices and placement scores move within minutes, so that whoever watches sees it.
    """
    usd_per_hour = {
        f"{family}.{size}": round(_NANO_USD_PER_HOUR[family] * 2**step, 4)
        for family in FAMILIES
        for step, size in enumerate(SIZES)
    }
    return plausible_scenario(
        regions,
        usd_per_hour,
        movement=Movement(period_s=_MOVES_WITHIN_S, price_change_s=_PRICE_STANDS_S),
    )
