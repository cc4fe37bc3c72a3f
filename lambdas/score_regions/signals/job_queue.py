"""Jobs waiting and jobs running: the SQS queue of the region's job stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lambdas.region_scores import Reading
from lambdas.score_regions.collection import Probe, SignalKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_sqs.literals import QueueAttributeFilterType

    from lambdas.score_regions.clients import AwsClients
    from lambdas.settings import Region

QUEUE_URL_OUTPUT = "JobQueueUrl"
ATTRIBUTES: Mapping[str, QueueAttributeFilterType] = {
    "queue_depth": "ApproximateNumberOfMessages",
    "running_jobs": "ApproximateNumberOfMessagesNotVisible",
}


def job_queue_probe(region: Region, clients: AwsClients, *, now_s: float) -> Probe:
    """Read queue_depth and running_jobs of a region."""
    keys = {signal: SignalKey(signal, region.name) for signal in ATTRIBUTES}

    def read() -> dict[SignalKey, Reading]:
        if region.job_stack_name is None:
            absent = Reading.absent("not_offered", "the region has no job stack")
            return dict.fromkeys(keys.values(), absent)
        queue_url = _queue_url(clients, region.name, region.job_stack_name)
        if queue_url is None:
            error = f"stack {region.job_stack_name} has no output {QUEUE_URL_OUTPUT}"
            return dict.fromkeys(keys.values(), Reading.absent("missing", error))
        answer = clients.sqs(region.name).get_queue_attributes(
            QueueUrl=queue_url,
            AttributeNames=list(ATTRIBUTES.values()),
        )
        attributes = {str(name): value for name, value in answer.get("Attributes", {}).items()}
        return {
            keys[signal]: Reading.of(float(attributes[attribute]), observed_at_s=now_s)
            for signal, attribute in ATTRIBUTES.items()
            if attribute in attributes
        }

    return Probe(name=f"job queue of {region.name}", expects=tuple(keys.values()), read=read)


def _queue_url(clients: AwsClients, region_name: str, stack_name: str) -> str | None:
    [stack] = clients.cloudformation(region_name).describe_stacks(StackName=stack_name)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    return outputs.get(QUEUE_URL_OUTPUT)
