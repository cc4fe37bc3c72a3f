"""The queue and utilisation collectors against answers of their AWS APIs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.stub import ANY, Stubber

from lambdas.region_scores import Reading
from lambdas.score_regions.clients import AwsClients
from lambdas.score_regions.collection import Probe, collect
from lambdas.score_regions.signals.cluster_utilization import cluster_utilization_probe
from lambdas.score_regions.signals.job_queue import job_queue_probe
from lambdas.settings import Region

REGION = Region(
    name="us-east-1", nats_url="tls://nats:4222", job_stack_name="jobs", cluster_name="gpus"
)
BARE_REGION = Region(name="us-east-1", nats_url="tls://nats:4222")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()
QUEUE_URL = "https://sqs.us-east-1.amazonaws.com/000000000000/jobs"


@contextmanager
def answering(client: BaseClient, *answers: tuple[str, dict[str, Any]]) -> Iterator[None]:
    """Let a client answer its calls so, in this order, and no more of them."""
    with Stubber(client) as stubber:
        for action, answer in answers:
            stubber.add_response(action, answer)
        yield
        stubber.assert_no_pending_responses()


def read(probe: Probe) -> dict[str, Reading]:
    """Run a probe for one region or type; its readings by signal."""
    return {key.signal: reading for key, reading in collect([probe], timeout_s=30).items()}


def seen(value: float, at: datetime = NOW) -> Reading:
    return Reading.of(value, observed_at_s=at.timestamp())


def missing() -> Reading:
    return Reading.absent("missing", "not in the answer")


# --- job queue -----------------------------------------------------------------------------


def stack(outputs: dict[str, str]) -> tuple[str, dict[str, Any]]:
    return "describe_stacks", {
        "Stacks": [
            {
                "StackName": "jobs",
                "CreationTime": NOW,
                "StackStatus": "CREATE_COMPLETE",
                "Outputs": [
                    {"OutputKey": name, "OutputValue": value} for name, value in outputs.items()
                ],
            }
        ]
    }


@pytest.mark.parametrize(
    ("attributes", "depth", "running"),
    [
        (
            {"ApproximateNumberOfMessages": "7", "ApproximateNumberOfMessagesNotVisible": "2"},
            seen(7),
            seen(2),
        ),
        ({"ApproximateNumberOfMessages": "0"}, seen(0), missing()),
        ({}, missing(), missing()),
    ],
)
def test_the_queue_of_the_job_stack_is_read(
    clients: AwsClients, attributes: dict[str, str], depth: Reading, running: Reading
) -> None:
    with (
        answering(
            clients.cloudformation("us-east-1"), stack({"Other": "x", "JobQueueUrl": QUEUE_URL})
        ),
        answering(clients.sqs("us-east-1"), ("get_queue_attributes", {"Attributes": attributes})),
    ):
        readings = read(job_queue_probe(REGION, clients, now_s=NOW_S))

    assert readings == {"queue_depth": depth, "running_jobs": running}


def test_a_job_stack_without_the_output_leaves_the_queue_missing(clients: AwsClients) -> None:
    with answering(clients.cloudformation("us-east-1"), stack({})):
        readings = read(job_queue_probe(REGION, clients, now_s=NOW_S))

    absent = Reading.absent("missing", "stack jobs has no output JobQueueUrl")
    assert readings == {"queue_depth": absent, "running_jobs": absent}


def test_a_region_without_a_job_stack_offers_no_queue_and_is_not_asked(clients: AwsClients) -> None:
    with answering(clients.cloudformation("us-east-1")):
        readings = read(job_queue_probe(BARE_REGION, clients, now_s=NOW_S))

    assert {reading.status for reading in readings.values()} == {"not_offered"}


# --- utilisation ---------------------------------------------------------------------------


def metric(
    name: str, *points: tuple[int, float], code: str = "Complete", message: str = ""
) -> dict[str, Any]:
    """One metric's result; points: minutes ago, value."""
    return {
        "Id": name,
        "Timestamps": [NOW - timedelta(minutes=minutes) for minutes, _ in points],
        "Values": [value for _, value in points],
        "StatusCode": code,
        "Messages": [{"Code": code, "Value": message}] if message else [],
    }


def metrics(*results: dict[str, Any], next_page: str | None = None) -> tuple[str, dict[str, Any]]:
    answer: dict[str, Any] = {"MetricDataResults": list(results)}
    return "get_metric_data", answer | ({"NextToken": next_page} if next_page else {})


def utilization(clients: AwsClients, *answers: tuple[str, dict[str, Any]]) -> dict[str, Reading]:
    with answering(clients.cloudwatch("us-east-1"), *answers):
        return read(cluster_utilization_probe(REGION, clients, now_s=NOW_S))


def test_the_newest_datapoint_counts_in_whatever_order_they_come(clients: AwsClients) -> None:
    readings = utilization(
        clients,
        metrics(
            metric("gpu_utilization", (3, 30.0), (1, 10.0), (2, 20.0)),
            metric("cpu_utilization", (2, 5.0), (4, 7.0)),
        ),
    )

    assert readings == {
        "gpu_utilization": seen(10.0, NOW - timedelta(minutes=1)),
        "cpu_utilization": seen(5.0, NOW - timedelta(minutes=2)),
    }


def test_a_metric_without_datapoints_is_missing_and_the_other_is_not(clients: AwsClients) -> None:
    readings = utilization(
        clients, metrics(metric("gpu_utilization"), metric("cpu_utilization", (1, 5.0)))
    )

    assert readings["gpu_utilization"] == Reading.absent("missing", "no datapoint within 0:10:00")
    assert readings["cpu_utilization"].value == 5.0


def test_datapoints_are_read_over_all_pages(clients: AwsClients) -> None:
    readings = utilization(
        clients,
        metrics(metric("gpu_utilization", (5, 50.0), code="PartialData"), next_page="more"),
        metrics(metric("gpu_utilization", (1, 10.0)), metric("cpu_utilization", (1, 5.0))),
    )

    assert readings["gpu_utilization"].value == 10.0


@pytest.mark.parametrize(
    ("code", "status"), [("Forbidden", "refused"), ("InternalError", "failed")]
)
def test_an_error_of_one_metric_is_recorded_with_its_message(
    clients: AwsClients, code: str, status: str
) -> None:
    readings = utilization(
        clients,
        metrics(
            metric("gpu_utilization", (1, 1.0), code=code, message="sorry"),
            metric("cpu_utilization", (1, 5.0)),
        ),
    )

    assert readings["gpu_utilization"].status == status
    assert readings["gpu_utilization"].error == f"{code} sorry"
    assert readings["cpu_utilization"].status == "ok"


def test_both_metrics_are_asked_for_in_one_call(clients: AwsClients) -> None:
    with Stubber(clients.cloudwatch("us-east-1")) as stubber:
        stubber.add_response(
            "get_metric_data",
            metrics()[1],
            {"MetricDataQueries": ANY, "StartTime": NOW - timedelta(minutes=10), "EndTime": NOW},
        )
        read(cluster_utilization_probe(REGION, clients, now_s=NOW_S))
        stubber.assert_no_pending_responses()


def test_a_region_without_a_cluster_offers_no_utilisation(clients: AwsClients) -> None:
    with answering(clients.cloudwatch("us-east-1")):
        readings = read(cluster_utilization_probe(BARE_REGION, clients, now_s=NOW_S))

    assert {reading.status for reading in readings.values()} == {"not_offered"}
