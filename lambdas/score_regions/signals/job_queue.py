"""Jobs waiting and jobs running: the SQS queue of the region's job stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from botocore.exceptions import ClientError

from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey
from lambdas.score_regions.memory import DAY_S, JobQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lambdas.score_regions.clients import AwsClients

QUEUE_URL_OUTPUT: Final = "JobQueueUrl"
ATTRIBUTES: Final = {
    "queue_depth": "ApproximateNumberOfMessages",
    "running_jobs": "ApproximateNumberOfMessagesNotVisible",
}
URL_HOLDS_S: Final = DAY_S


class JobQueues:
    """Where each region's jobs wait. Safe to use from many threads.

    known: by region, as remembered from earlier sweeps; it is changed by what this one finds.
    """

    def __init__(self, known: Mapping[str, JobQueue | None], *, now_s: float) -> None:
        self._now_s = now_s
        self._known = {
            region: queue
            for region, queue in known.items()
            if queue is not None and 0 <= now_s - queue.found_at_s < URL_HOLDS_S
        }

    def of(self, region: str) -> JobQueue | None:
        """Return a region's queue, if it is known."""
        return self._known.get(region)

    def found(self, region: str, url: str) -> None:
        """Note what the region's stack says."""
        self._known[region] = JobQueue(url, self._now_s)

    def forget(self, region: str) -> None:
        """Have the stack asked again next time."""
        self._known.pop(region, None)


def job_queue_probe(
    region_name: str, stack_name: str, queues: JobQueues, clients: AwsClients, *, now_s: float
) -> Probe:
    """Read queue_depth and running_jobs of a region, from the queue that its stack names."""
    keys = {signal: SignalKey(signal, region_name) for signal in ATTRIBUTES}

    def read() -> dict[SignalKey, Reading]:
        queue = queues.of(region_name)
        url = queue.url if queue else _queue_url(clients, region_name, stack_name)
        if url is None:
            error = f"stack {stack_name} has no output {QUEUE_URL_OUTPUT}"
            return dict.fromkeys(keys.values(), Reading.absent("missing", error))
        try:
            attributes = _attributes(clients, region_name, url)
        except ClientError:
            # The stack may have another queue by now.
            queues.forget(region_name)
            raise
        if queue is None:
            queues.found(region_name, url)
        return {
            keys[signal]: Reading.of(float(attributes[attribute]), observed_at_s=now_s)
            for signal, attribute in ATTRIBUTES.items()
            if attribute in attributes
        }

    return Probe(name=f"job queue of {region_name}", expects=tuple(keys.values()), read=read)


def _queue_url(clients: AwsClients, region_name: str, stack_name: str) -> str | None:
    [stack] = clients.cloudformation(region_name).describe_stacks(StackName=stack_name)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    return outputs.get(QUEUE_URL_OUTPUT)


def _attributes(clients: AwsClients, region_name: str, url: str) -> dict[str, str]:
    answer = clients.sqs(region_name).get_queue_attributes(
        QueueUrl=url,
        AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
    )
    return {str(name): value for name, value in answer.get("Attributes", {}).items()}
