"""The scoring function whole, on moto and the AWS fakes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import boto3
import pytest
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import ClientError
from moto import mock_aws

from fleetcast.local.aws_fakes import AwsFakes, Failure, Prices, Scenario
from fleetcast.scoring import RegionSignals, simple_score, weighted_score
from lambdas.attribute_values import decode_item
from lambdas.score_regions import handler
from lambdas.settings import Region, ScoreRegionsSettings, encode_settings
from tests.tables import create_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from lambdas.region_scores import SignalStatus

TABLE = "RegionScores"
SETTINGS = ScoreRegionsSettings(
    region_scores_table=TABLE,
    regions=(
        Region(
            name="us-east-1", nats_url="tls://a:4222", job_stack_name="jobs", cluster_name="gpus"
        ),
        Region(
            name="eu-west-1", nats_url="tls://b:4222", job_stack_name="jobs", cluster_name="gpus"
        ),
        Region(name="lab-1", nats_url="tls://c:4222"),
    ),
    scored_instance_types=("t3.medium", "m8a.nano"),
    score_ttl_s=3600,
)
SCENARIO = Scenario(
    prices={
        "us-east-1": {
            "t3.medium": Prices(
                on_demand_usd_per_hour=0.04,
                spot_usd_per_hour={"us-east-1a": 0.01, "us-east-1b": 0.014},
            )
        },
        "eu-west-1": {
            "t3.medium": Prices(
                on_demand_usd_per_hour=0.05, spot_usd_per_hour={"eu-west-1a": 0.045}
            )
        },
    },
    page_size=1,
)
JOB_STACK = {
    "Resources": {"Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "jobs"}}},
    "Outputs": {"JobQueueUrl": {"Value": {"Ref": "Queue"}}},
}


def invocation(request_id: str, *, left_ms: int) -> LambdaContext:
    """Lambda's context, as far as the handler reads it."""

    class Invocation(LambdaContext):
        _aws_request_id = request_id

        @staticmethod
        def get_remaining_time_in_millis() -> int:
            return left_ms

    return Invocation()


class Cloud:
    """An account with jobs and clusters in two regions, and the prices of a scenario."""

    def __init__(self) -> None:
        self.scenario = SCENARIO

    def put_utilization(self, region: str, **percent: float) -> None:
        """Publish a newest datapoint and an older one, the newest first."""
        now = datetime.now(UTC)
        boto3.client("cloudwatch", region_name=region).put_metric_data(
            Namespace="ContainerInsights",
            MetricData=[
                {
                    "MetricName": f"node_{name}_utilization",
                    "Dimensions": [{"Name": "ClusterName", "Value": "gpus"}],
                    "Timestamp": now - timedelta(minutes=age),
                    "Value": value,
                }
                for name, newest in percent.items()
                for age, value in ((2, newest), (6, 99.0))
            ],
        )

    def put_jobs(self, region: str, *, waiting: int, running: int) -> None:
        sqs = boto3.client("sqs", region_name=region)
        url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
        for _ in range(waiting + running):
            sqs.send_message(QueueUrl=url, MessageBody="a job")
        for _ in range(running):
            sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1)

    def date_rows_from_the_future(self) -> None:
        """Make all rows those of a sweep that begins in an hour."""
        dynamodb = boto3.client("dynamodb", region_name="us-east-1")
        for item in dynamodb.scan(TableName=TABLE)["Items"]:
            dynamodb.update_item(
                TableName=TABLE,
                Key={"pk": item["pk"], "sk": item["sk"]},
                UpdateExpression="SET computed_at = computed_at + :hour",
                ExpressionAttributeValues={":hour": {"N": "3600"}},
            )

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The table's rows by type and region."""
        pages = (
            boto3.client("dynamodb", region_name="us-east-1")
            .get_paginator("scan")
            .paginate(TableName=TABLE)
        )
        items = [decode_item(item) for page in pages for item in page["Items"]]
        return {
            (item["pk"].removeprefix("TYPE#"), item["sk"].removeprefix("REGION#")): item
            for item in items
        }


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        **encode_settings(SETTINGS),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    handler.at_cold_start.cache_clear()
    cloud = Cloud()
    with mock_aws(), AwsFakes(lambda: cloud.scenario) as fakes:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", fakes.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", fakes.url)
        create_table(boto3.client("dynamodb", region_name="us-east-1"), TABLE)
        for region in ("us-east-1", "eu-west-1"):
            boto3.client("cloudformation", region_name=region).create_stack(
                StackName="jobs", TemplateBody=json.dumps(JOB_STACK)
            )
        yield cloud
    handler.at_cold_start.cache_clear()


def sweep(name: str = "sweep-1", *, remaining_ms: int = 60_000) -> dict[str, Any]:
    return handler.handle({}, invocation(name, left_ms=remaining_ms))


def statuses(row: dict[str, Any]) -> dict[str, SignalStatus]:
    return {name: reading["status"] for name, reading in row["signals"].items()}


def test_a_sweep_scores_every_region_with_and_without_a_type(cloud: Cloud) -> None:
    cloud.put_jobs("us-east-1", waiting=3, running=2)
    cloud.put_utilization("us-east-1", gpu=42.0, cpu=10.0)
    cloud.put_jobs("eu-west-1", waiting=0, running=0)
    cloud.put_utilization("eu-west-1", gpu=0.0, cpu=0.0)

    summary = sweep()
    rows = cloud.rows()

    assert summary["rows_written_n"] == len(rows) == 3 * 3
    assert rows["*", "us-east-1"]["score"] == simple_score(3, 42, 2, 0)
    assert rows["*", "us-east-1"]["telemetry_status"] == "complete"
    typed = rows["t3.medium", "us-east-1"]
    assert typed["score"] == weighted_score(
        RegionSignals(
            spot_placement=0,
            spot_price_ratio=0.3,
            queue_depth=3,
            gpu_utilization=42,
            running_jobs=2,
            capacity_block_trend=-1,
        )
    )
    assert set(statuses(typed).values()) == {"ok"}
    assert typed["reasons"] == [
        "low queue depth (3)",
        "58% GPU available",
        "few running jobs (2)",
        "good spot savings (70% off on-demand)",
    ]
    assert rows["t3.medium", "eu-west-1"]["signals"]["spot_price_ratio"]["value"] == pytest.approx(
        0.9
    )
    assert rows["*", "eu-west-1"]["score"] == 0
    assert typed["sweep_id"] == "sweep-1"
    assert typed["expires_at"] == int(typed["computed_at"] + 3600)


def test_a_type_that_ec2_does_not_sell_has_a_score_without_prices(cloud: Cloud) -> None:
    sweep()

    assert statuses(cloud.rows()["m8a.nano", "us-east-1"])["spot_price_ratio"] == "missing"


def test_a_region_outside_aws_is_scored_without_asking_anything_of_it(cloud: Cloud) -> None:
    sweep()
    rows = cloud.rows()

    assert statuses(rows["*", "lab-1"]) == dict.fromkeys(
        ("queue_depth", "running_jobs", "gpu_utilization", "cpu_utilization"), "not_offered"
    )
    assert statuses(rows["t3.medium", "lab-1"])["spot_price_usd_per_hour"] == "not_offered"
    assert rows["*", "lab-1"]["telemetry_status"] == "unavailable"


def test_a_cluster_without_datapoints_leaves_the_telemetry_partial(cloud: Cloud) -> None:
    cloud.put_utilization("us-east-1", cpu=10.0)

    sweep()
    row = cloud.rows()["*", "us-east-1"]

    assert row["telemetry_status"] == "partial"
    assert row["missing_scored_signals"] == 1
    assert row["reasons"][0] == "telemetry is partial: GPU"
    assert statuses(row)["gpu_utilization"] == "missing"


def test_a_job_stack_that_is_gone_fails_the_queue_alone(cloud: Cloud) -> None:
    cloud.put_utilization("us-east-1", gpu=42.0, cpu=10.0)
    boto3.client("cloudformation", region_name="us-east-1").delete_stack(StackName="jobs")

    sweep()
    row = cloud.rows()["t3.medium", "us-east-1"]

    assert statuses(row)["queue_depth"] == "failed"
    assert "jobs" in row["signals"]["queue_depth"]["error"]
    assert statuses(row)["gpu_utilization"] == "ok"
    assert statuses(row)["spot_price_ratio"] == "ok"


def test_a_price_call_that_fails_is_recorded_and_scored_as_the_worst(cloud: Cloud) -> None:
    sweep("sweep-1")
    before = cloud.rows()["t3.medium", "us-east-1"]
    cloud.scenario = Scenario(
        prices=SCENARIO.prices,
        failures=[
            Failure(action="DescribeSpotPriceHistory", kind="access_denied", region="us-east-1")
        ],
    )

    summary = sweep("sweep-2")
    rows = cloud.rows()
    after = rows["t3.medium", "us-east-1"]

    assert after["signals"]["spot_price_ratio"]["status"] == "refused"
    assert "UnauthorizedOperation" in after["signals"]["spot_price_ratio"]["error"]
    assert after["score"] > before["score"]
    assert statuses(rows["t3.medium", "eu-west-1"])["spot_price_ratio"] == "ok"
    assert summary["readings_n"]["refused"] == 2  # of two types


def test_a_sweep_without_time_left_still_writes_and_says_why(cloud: Cloud) -> None:
    cloud.scenario = Scenario(latency_s={"GetProducts": 3600, "DescribeSpotPriceHistory": 3600})

    summary = sweep(remaining_ms=int((handler.WRITING_S + 0.5) * 1000))
    row = cloud.rows()["t3.medium", "us-east-1"]

    assert summary["rows_written_n"] == 3 * 3
    assert row["signals"]["on_demand_price_usd_per_hour"]["error"] == "deadline"
    assert statuses(row)["spot_price_ratio"] == "missing"


def test_a_sweep_that_began_earlier_leaves_the_rows_of_a_later_one(cloud: Cloud) -> None:
    sweep("later")
    cloud.date_rows_from_the_future()

    summary = sweep("earlier")

    assert (summary["rows_written_n"], summary["rows_superseded_n"]) == (0, 3 * 3)
    assert {row["sweep_id"] for row in cloud.rows().values()} == {"later"}


@pytest.mark.usefixtures("cloud")
def test_rows_that_cannot_be_written_fail_the_invocation() -> None:
    boto3.client("dynamodb", region_name="us-east-1").delete_table(TableName=TABLE)

    with pytest.raises(ClientError, match="ResourceNotFound"):
        sweep()


@pytest.mark.usefixtures("cloud")
def test_a_sweep_leaves_one_line_that_says_what_it_saw(caplog: pytest.LogCaptureFixture) -> None:
    summary = sweep("sweep-1")

    [record] = caplog.records
    assert record.message == "swept"
    assert summary.items() <= vars(record).items()
    assert summary["sweep_id"] == "sweep-1"
    assert summary["errors_n"]["queue_depth: not_offered: the region has no job stack"] == 1
