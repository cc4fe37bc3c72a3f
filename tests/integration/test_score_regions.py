"""The scoring function whole, on moto and the AWS fakes."""

from __future__ import annotations

import gc
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import boto3
import msgspec
import pytest
from aws_lambda_powertools.utilities.typing import LambdaContext
from botocore.exceptions import ClientError
from moto import mock_aws

from fleetcast.local.aws_fakes import AwsFakes, Failure, Prices, Scenario
from fleetcast.score_history import (
    RECORD_ATTRIBUTE,
    SweepRecord,
    decode_record,
    history_partition,
)
from fleetcast.scoring import RegionSignals, simple_score, weighted_score
from lambdas.attribute_values import decode_item
from lambdas.region_scores import RegionScoresTable
from lambdas.score_regions import handler
from lambdas.score_regions.connections import Connections
from lambdas.score_regions.memory import decode_memory, encode_memory
from lambdas.settings import Region, ScoreRegionsSettings, encode_settings
from tests.tables import create_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fleetcast.scoring import SignalStatus

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
    scored_instance_types=("t3.medium", "m8a.nano", "p5.48xlarge"),
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
    spot_placement={"us-east-1": {"t3.medium": 9}, "eu-west-1": {"t3.medium": 4}},
    capacity_blocks={"us-east-1": {"p5.48xlarge": (2, 1)}},
    page_size=1,
)
ROWS_N = 3 * 4  # regions, types and no type
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
        self.calls: Counter[tuple[str, str]] = Counter()  # of the fakes, by action and region

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

    def table(self) -> RegionScoresTable:
        return RegionScoresTable(boto3.client("dynamodb", region_name="us-east-1"), TABLE)

    def history(self, region: str) -> list[SweepRecord]:
        """What is kept of a region's sweeps, oldest first."""
        items = boto3.client("dynamodb", region_name="us-east-1").query(
            TableName=TABLE,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": history_partition(region)}},
        )["Items"]
        return [decode_record(decode_item(item)[RECORD_ATTRIBUTE]) for item in items]

    def date_memory_back(self, *, hours: float) -> None:
        """Make what the sweeps remember that much older."""
        dynamodb = boto3.client("dynamodb", region_name="us-east-1")
        for region in SETTINGS.regions:
            encoded = self.table().read_memory(region.name)
            assert encoded is not None
            memory = decode_memory(encoded)
            assert memory.swept_at_s is not None
            older = msgspec.structs.replace(memory, swept_at_s=memory.swept_at_s - hours * 3600)
            dynamodb.update_item(
                TableName=TABLE,
                Key={"pk": {"S": f"MEMORY#{region.name}"}, "sk": {"S": "SIGNALS"}},
                UpdateExpression="SET memory = :older",
                ExpressionAttributeValues={":older": {"B": encode_memory(older)}},
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
            if item["pk"].startswith("TYPE#")
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
    # moto copies whole tables for a transaction, and not safely beside another one.
    monkeypatch.setattr("lambdas.score_regions.sweep.WRITE_THREADS", 1)
    # moto answers in the same place, and botocore asks all who do.
    monkeypatch.setattr(Connections, "carry", lambda *_: None)
    handler.at_cold_start.cache_clear()
    cloud = Cloud()
    with mock_aws(), AwsFakes(lambda: cloud.scenario) as fakes:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", fakes.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", fakes.url)
        cloud.calls = fakes.calls
        create_table(boto3.client("dynamodb", region_name="us-east-1"), TABLE)
        for region in ("us-east-1", "eu-west-1"):
            boto3.client("cloudformation", region_name=region).create_stack(
                StackName="jobs", TemplateBody=json.dumps(JOB_STACK)
            )
        yield cloud
    handler.at_cold_start.cache_clear()


def sweep(name: str = "sweep-1", *, remaining_ms: int = 60_000) -> dict[str, Any]:
    return handler.handle({}, invocation(name, left_ms=remaining_ms))


def failing(action: str) -> Scenario:
    """The scenario, but that an action is refused."""
    failure = Failure(action=action, kind="access_denied")
    return msgspec.structs.replace(SCENARIO, failures=[failure])


def statuses(row: dict[str, Any]) -> dict[str, SignalStatus]:
    return {name: reading["status"] for name, reading in row["signals"].items()}


def test_a_sweep_scores_every_region_with_and_without_a_type(cloud: Cloud) -> None:
    cloud.put_jobs("us-east-1", waiting=3, running=2)
    cloud.put_utilization("us-east-1", gpu=42.0, cpu=10.0)
    cloud.put_jobs("eu-west-1", waiting=0, running=0)
    cloud.put_utilization("eu-west-1", gpu=0.0, cpu=0.0)

    summary = sweep()
    rows = cloud.rows()

    assert summary["rows_written_n"] == len(rows) == ROWS_N
    assert rows["*", "us-east-1"]["score"] == simple_score(3, 42, 2, 0)
    assert rows["*", "us-east-1"]["telemetry_status"] == "complete"
    typed = rows["t3.medium", "us-east-1"]
    assert typed["score"] == weighted_score(
        RegionSignals(
            spot_placement=0.9,
            spot_price_ratio=0.3,
            queue_depth=3,
            gpu_utilization=42,
            running_jobs=2,
            capacity_block_trend=0,
        )
    )
    observed_only = {"total_gpus", "free_gpus", "average_wait_s"}
    assert {name for name, status in statuses(typed).items() if status != "ok"} == {
        "capacity_block_trend",  # not sold in blocks
        "spot_price_trend",  # not asked for in a first sweep
        *observed_only,
    }
    assert typed["reasons"] == [
        "low queue depth (3)",
        "58% GPU available",
        "few running jobs (2)",
        "high spot placement score (0.9)",
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

    signals = statuses(cloud.rows()["m8a.nano", "us-east-1"])
    assert signals["spot_price_ratio"] == "missing"
    assert signals["spot_placement"] == "not_offered"


def test_a_region_outside_aws_is_scored_without_asking_anything_of_it(cloud: Cloud) -> None:
    sweep()
    rows = cloud.rows()

    assert set(statuses(rows["*", "lab-1"]).values()) == {"missing"}  # nothing is configured
    assert statuses(rows["t3.medium", "lab-1"])["spot_price_usd_per_hour"] == "not_offered"
    assert statuses(rows["t3.medium", "lab-1"])["spot_placement"] == "not_offered"
    assert statuses(rows["p5.48xlarge", "lab-1"])["capacity_block_trend"] == "not_offered"
    assert "lab-1" not in {region for _, region in cloud.calls}
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
    assert after["signals"]["spot_price_ratio"]["value"] == pytest.approx(0.3)  # the last good one
    assert "UnauthorizedOperation" in after["signals"]["spot_price_ratio"]["error"]
    assert after["score"] > before["score"]
    assert statuses(rows["t3.medium", "eu-west-1"])["spot_price_ratio"] == "ok"
    assert summary["readings_n"]["refused"] == 3 * 2  # prices and trends of three types


def test_a_sweep_without_time_left_still_writes_and_says_why(cloud: Cloud) -> None:
    actions = ("GetProducts", "DescribeSpotPriceHistory", "GetSpotPlacementScores")
    cloud.scenario = Scenario(latency_s=dict.fromkeys(actions, 3600.0))

    summary = sweep(remaining_ms=int((handler.WRITING_S + 0.5) * 1000))
    row = cloud.rows()["t3.medium", "us-east-1"]

    assert summary["rows_written_n"] == ROWS_N
    assert row["signals"]["on_demand_price_usd_per_hour"]["error"] == "deadline"
    assert statuses(row)["spot_price_ratio"] == "missing"
    assert statuses(row)["spot_placement"] == "missing"


def test_a_sweep_that_began_earlier_leaves_the_rows_of_a_later_one(cloud: Cloud) -> None:
    sweep("later")
    cloud.date_rows_from_the_future()

    summary = sweep("earlier")

    assert (summary["rows_written_n"], summary["rows_superseded_n"]) == (0, ROWS_N)
    assert {row["sweep_id"] for row in cloud.rows().values()} == {"later"}


@pytest.mark.usefixtures("cloud")
def test_rows_that_cannot_be_written_fail_the_invocation() -> None:
    boto3.client("dynamodb", region_name="us-east-1").delete_table(TableName=TABLE)

    with pytest.raises(ExceptionGroup, match="not written: us-east-1, eu-west-1, lab-1") as caught:
        sweep()

    assert caught.group_contains(ClientError, match="ResourceNotFound")
    assert gc.isenabled()  # it is off during a sweep


@pytest.mark.usefixtures("cloud")
def test_a_sweep_leaves_one_line_that_says_what_it_saw(caplog: pytest.LogCaptureFixture) -> None:
    summary = sweep("sweep-1")

    [record] = caplog.records
    assert record.message == "swept"
    assert summary.items() <= vars(record).items()
    assert summary["sweep_id"] == "sweep-1"
    assert summary["errors_n"]["queue_depth: missing: the region has no job stack"] == 1


# --- what sweeps remember ------------------------------------------------------------------


def test_a_second_sweep_asks_only_for_what_changes_each_time(cloud: Cloud) -> None:
    cloud.put_jobs("us-east-1", waiting=3, running=0)
    sweep("sweep-1")
    first = Counter(cloud.calls)

    sweep("sweep-2")
    again = {action for (action, _), n in (cloud.calls - first).items() if n}

    assert {"GetSpotPlacementScores", "GetProducts", "DescribeCapacityBlockOfferings"} <= {
        action for action, _ in first
    }
    assert again == {"DescribeSpotPriceHistory"}
    row = cloud.rows()["t3.medium", "us-east-1"]
    assert row["sweep_id"] == "sweep-2"
    assert statuses(row)["spot_placement"] == statuses(row)["spot_price_ratio"] == "ok"
    assert row["signals"]["spot_placement"]["observed_at"] < row["computed_at"]
    assert row["signals"]["queue_depth"]["value"] == 3


def test_too_many_configurations_are_a_refusal_that_harms_no_other_signal(cloud: Cloud) -> None:
    cloud.scenario = msgspec.structs.replace(SCENARIO, spot_placement_configurations=0)

    sweep()
    row = cloud.rows()["t3.medium", "us-east-1"]

    assert statuses(row)["spot_placement"] == "refused"
    assert "MaxConfigLimitExceeded" in row["signals"]["spot_placement"]["error"]
    assert statuses(row)["spot_price_ratio"] == "ok"


def test_a_refused_score_leaves_the_last_good_one_in_sight_but_not_in_the_sum(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETCAST_SPOT_PLACEMENT_REFRESH_S", "0.001")
    handler.at_cold_start.cache_clear()
    sweep("sweep-1")
    before = cloud.rows()["t3.medium", "us-east-1"]
    cloud.scenario = failing("GetSpotPlacementScores")

    sweep("sweep-2")
    after = cloud.rows()["t3.medium", "us-east-1"]

    assert after["signals"]["spot_placement"]["status"] == "refused"
    assert after["signals"]["spot_placement"]["value"] == 0.9
    assert after["signals"]["spot_placement"]["observed_at"] == before["computed_at"]
    assert after["score"] == pytest.approx(before["score"] + 0.25 * 0.9)
    assert not any("placement" in reason for reason in after["reasons"])


def test_a_memory_that_is_not_understood_is_learnt_again(cloud: Cloud) -> None:
    sweep("sweep-1")
    boto3.client("dynamodb", region_name="us-east-1").update_item(
        TableName=TABLE,
        Key={"pk": {"S": "MEMORY#us-east-1"}, "sk": {"S": "SIGNALS"}},
        UpdateExpression="SET memory = :broken",
        ExpressionAttributeValues={":broken": {"B": b"of another version"}},
    )

    sweep("sweep-2")

    assert statuses(cloud.rows()["t3.medium", "us-east-1"])["spot_placement"] == "ok"


def test_what_sweeps_found_can_be_scored_again_later(cloud: Cloud) -> None:
    for name in ("sweep-1", "sweep-2"):
        sweep(name)
    rows = cloud.rows()

    history = cloud.history("us-east-1")

    assert [record.sweep_id for record in history] == ["sweep-1", "sweep-2"]
    for instance_type, past in history[-1].scores.items():
        assert past.score == rows[instance_type, "us-east-1"]["score"]
        if past.signals is not None:
            assert weighted_score(past.signals) == past.score


# --- metrics -------------------------------------------------------------------------------


def published(captured: pytest.CaptureFixture[str]) -> dict[tuple[str, str | None], float]:
    """The metrics in the log's embedded metric format, by name and kind."""
    metrics: dict[tuple[str, str | None], float] = {}
    for line in captured.readouterr().out.splitlines():
        entry = json.loads(line)
        for directive in entry.get("_aws", {}).get("CloudWatchMetrics", []):
            assert directive["Namespace"] == "fleetcast"
            assert entry["service"] == "score_regions"
            for metric in directive["Metrics"]:
                [value] = entry[metric["Name"]]
                metrics[metric["Name"], entry.get("kind")] = value
    return metrics


def test_a_sweep_publishes_how_it_went(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.scenario = failing("GetSpotPlacementScores")

    summary = sweep()
    metrics = published(capsys)

    assert metrics["SweepDuration", None] > 0
    assert 0 <= metrics["OldestScoreAge", None] <= metrics["SweepDuration", None] + 1
    for kind in ("stale", "missing", "refused", "failed"):
        assert metrics["FailedSignals", kind] == summary["readings_n"].get(kind, 0)
    assert metrics["FailedSignals", "refused"] == 2 * 2  # of two pools in two regions


def test_a_region_takes_at_most_seven_calls(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.scenario = msgspec.structs.replace(SCENARIO, page_size=1000)
    sweep()

    on_demand, pools, blocks, outside_aws = 3, 2, 2, 2  # of lab-1: its memory and its rows
    most_n = 7 * 2 + on_demand + pools + blocks + outside_aws
    assert published(capsys)["AwsCalls", None] <= most_n


@pytest.mark.usefixtures("cloud")
def test_scores_that_are_of_unknown_age_publish_none(capsys: pytest.CaptureFixture[str]) -> None:
    boto3.client("dynamodb", region_name="us-east-1").delete_table(TableName=TABLE)

    with pytest.raises(ExceptionGroup):
        sweep()

    metrics = published(capsys)
    assert ("SweepDuration", None) in metrics
    assert ("OldestScoreAge", None) not in metrics  # the alarm fires on that, too


def test_rows_that_could_not_be_written_are_as_old_as_the_last_sweep(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("sweep-1")
    cloud.date_memory_back(hours=2)
    capsys.readouterr()

    def refuse(params: dict[str, Any], **_: object) -> None:
        if "REGION#eu-west-1" in str(params):
            raise ClientError({"Error": {"Code": "InternalServerError"}}, "TransactWriteItems")

    dynamodb: Any = handler.at_cold_start().table._client  # noqa: SLF001 - to make a call of it fail
    dynamodb.meta.events.register("before-parameter-build.dynamodb.TransactWriteItems", refuse)
    with pytest.raises(ExceptionGroup, match="not written: eu-west-1"):
        sweep("sweep-2")

    rows = cloud.rows()
    assert rows["*", "us-east-1"]["sweep_id"] == "sweep-2"
    assert rows["*", "eu-west-1"]["sweep_id"] == "sweep-1"
    assert published(capsys)["OldestScoreAge", None] >= 2 * 3600
