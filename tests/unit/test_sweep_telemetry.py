"""The queue and utilisation collectors against answers of their AWS APIs."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.stub import ANY, Stubber

from fleetcast.scoring import Reading
from lambdas.score_regions.clients import AwsClients
from lambdas.score_regions.collection import Probe, collect
from lambdas.score_regions.memory import JobQueue
from lambdas.score_regions.signals.job_queue import JobQueues, job_queue_probe
from lambdas.score_regions.signals.region_metrics import region_metrics_probe
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
    return {key.signal: reading for key, reading in collect([probe], timeout_s=30).readings.items()}


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


def queues(**known: JobQueue) -> JobQueues:
    return JobQueues(
        {region.replace("_", "-"): queue for region, queue in known.items()}, now_s=NOW_S
    )


def queue_probe(clients: AwsClients, known: JobQueues) -> Probe:
    return job_queue_probe("us-east-1", "jobs", known, clients, now_s=NOW_S)


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
        readings = read(queue_probe(clients, queues()))

    assert readings == {"queue_depth": depth, "running_jobs": running}


def test_a_job_stack_without_the_output_leaves_the_queue_missing(clients: AwsClients) -> None:
    known = queues()
    with answering(clients.cloudformation("us-east-1"), stack({})):
        readings = read(queue_probe(clients, known))

    absent = Reading.absent("missing", "stack jobs has no output JobQueueUrl")
    assert readings == {"queue_depth": absent, "running_jobs": absent}
    assert known.of("us-east-1") is None


ATTRIBUTES = ("get_queue_attributes", {"Attributes": {"ApproximateNumberOfMessages": "7"}})


def test_a_stack_is_asked_for_its_queue_once_a_day(clients: AwsClients) -> None:
    known = queues(us_east_1=JobQueue(QUEUE_URL, NOW_S - 86_399))
    with (
        answering(clients.cloudformation("us-east-1")),
        answering(clients.sqs("us-east-1"), ATTRIBUTES),
    ):
        assert read(queue_probe(clients, known))["queue_depth"] == seen(7)
    assert known.of("us-east-1") == JobQueue(QUEUE_URL, NOW_S - 86_399)

    old = queues(us_east_1=JobQueue("https://sqs.us-east-1.amazonaws.com/0/old", NOW_S - 86_400))
    with (
        answering(clients.cloudformation("us-east-1"), stack({"JobQueueUrl": QUEUE_URL})),
        answering(clients.sqs("us-east-1"), ATTRIBUTES),
    ):
        assert read(queue_probe(clients, old))["queue_depth"] == seen(7)
    assert old.of("us-east-1") == JobQueue(QUEUE_URL, NOW_S)


def test_a_queue_that_refuses_is_asked_for_anew_next_time(clients: AwsClients) -> None:
    known = queues(us_east_1=JobQueue(QUEUE_URL, NOW_S - 60))
    with Stubber(clients.sqs("us-east-1")) as stubber:
        stubber.add_client_error("get_queue_attributes", "AWS.SimpleQueueService.NonExistentQueue")
        readings = read(queue_probe(clients, known))

    assert {reading.status for reading in readings.values()} == {"failed"}
    assert known.of("us-east-1") is None


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
        return read(region_metrics_probe(REGION, QUEUE_URL, clients, now_s=NOW_S))


def test_the_newest_datapoint_counts_in_whatever_order_they_come(clients: AwsClients) -> None:
    readings = utilization(
        clients,
        metrics(
            metric("gpu_utilization", (3, 30.0), (1, 10.0), (2, 20.0)),
            metric("cpu_utilization", (2, 5.0), (4, 7.0)),
        ),
    )

    assert {name: readings[name] for name in ("gpu_utilization", "cpu_utilization")} == {
        "gpu_utilization": seen(10.0, NOW - timedelta(minutes=1)),
        "cpu_utilization": seen(5.0, NOW - timedelta(minutes=2)),
    }


def test_a_metric_without_datapoints_is_missing_and_the_other_is_not(clients: AwsClients) -> None:
    readings = utilization(
        clients, metrics(metric("gpu_utilization"), metric("cpu_utilization", (1, 5.0)))
    )

    assert readings["gpu_utilization"] == Reading.absent(
        "missing", "no datapoint within 10 minutes"
    )
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


def test_all_metrics_are_asked_for_in_one_call(clients: AwsClients) -> None:
    with Stubber(clients.cloudwatch("us-east-1")) as stubber:
        stubber.add_response(
            "get_metric_data",
            metrics()[1],
            {"MetricDataQueries": ANY, "StartTime": NOW - timedelta(minutes=10), "EndTime": NOW},
        )
        readings = read(region_metrics_probe(REGION, QUEUE_URL, clients, now_s=NOW_S))
        stubber.assert_no_pending_responses()

    assert set(readings) == {
        "gpu_utilization",
        "cpu_utilization",
        "total_gpus",
        "free_gpus",
        "jobs_started_per_minute",
    }
    # An answer that leaves a metric out has not said that it has no datapoints.
    assert set(readings.values()) == {missing()}


def test_what_a_region_lacks_is_not_asked_for(clients: AwsClients) -> None:
    def asked_for(region: Region, queue_url: str | None) -> set[str]:
        probe = region_metrics_probe(region, queue_url, clients, now_s=NOW_S)
        return {key.signal for key in probe.expects}

    assert asked_for(BARE_REGION, QUEUE_URL) == {"jobs_started_per_minute"}
    assert "jobs_started_per_minute" not in asked_for(REGION, None)


# --- a cluster that is scaled to zero ------------------------------------------------------


def test_a_cluster_without_any_datapoint_is_scaled_to_zero(clients: AwsClients) -> None:
    readings = utilization(
        clients,
        metrics(*map(metric, ("gpu_utilization", "cpu_utilization", "total_gpus", "used_gpus"))),
    )

    absent = Reading.absent("not_offered", "scaled to zero: no datapoint within 10 minutes")
    for signal in ("gpu_utilization", "cpu_utilization", "total_gpus", "free_gpus"):
        assert readings[signal] == absent


@pytest.mark.parametrize(
    "results",
    [
        [metric("gpu_utilization")],
        [metric("gpu_utilization"), metric("cpu_utilization", code="Forbidden")],
        [metric("gpu_utilization"), metric("cpu_utilization", code="PartialData")],
        [metric("gpu_utilization"), metric("cpu_utilization", (1, 5.0))],
    ],
)
def test_an_answer_with_less_than_that_does_not_say_so(
    clients: AwsClients, results: list[dict[str, Any]]
) -> None:
    readings = utilization(clients, metrics(*results))

    assert readings["gpu_utilization"].status == "missing"
    assert readings["cpu_utilization"].status != "not_offered"


# --- what is observed but not scored -------------------------------------------------------


def test_free_gpus_are_those_of_all_nodes_that_no_pod_uses(clients: AwsClients) -> None:
    # The last two minutes may lack nodes.
    readings = utilization(
        clients,
        metrics(
            metric("total_gpus", (1, 8.0), (2, 16.0), (3, 24.0)),
            metric("used_gpus", (1, 1.0), (2, 6.0), (3, 9.0)),
        ),
    )

    at = NOW - timedelta(minutes=2)
    assert (readings["total_gpus"], readings["free_gpus"]) == (seen(16, at), seen(10, at))


def test_an_error_of_either_gpu_metric_leaves_the_free_ones_unknown(clients: AwsClients) -> None:
    readings = utilization(
        clients,
        metrics(metric("total_gpus", (2, 16.0)), metric("used_gpus", code="Forbidden")),
    )

    assert readings["total_gpus"].value == 16
    assert readings["free_gpus"].status == "refused"


def test_jobs_started_are_the_mean_of_the_minutes_that_have_settled(clients: AwsClients) -> None:
    readings = utilization(
        clients, metrics(metric("jobs_started_per_minute", (1, 0.0), (2, 3.0), (3, 1.0), (4, 2.0)))
    )

    assert readings["jobs_started_per_minute"] == seen(2, NOW - timedelta(minutes=2))
