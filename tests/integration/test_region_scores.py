"""The RegionScores table: which sweep's row stands, and what a launch reads of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fleetcast.score_history import RECORD_ATTRIBUTE, decode_record, history_partition
from fleetcast.scoring import Reading
from fleetcast.selection import RegionScore
from lambdas.region_scores import ANY_TYPE, RegionScoresTable, ScoreRow
from tests.region_sweeps import sweep_of
from tests.tables import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

TABLE = "RegionScores"
ROW = ScoreRow(
    instance_type="t3.medium",
    region="us-east-1",
    score=0.1 + 0.2,  # a float whose text is long
    missing_scored_signals=1,
    telemetry_status="partial",
    signals={
        "queue_depth": Reading.of(3, observed_at_s=99.5),
        "gpu_utilization": Reading.absent("failed", "Throttling: slow down"),
    },
    reasons=("telemetry is partial: GPU", "low queue depth (3)"),
    computed_at_s=100.25,
    sweep_id="sweep-1",
    expires_at_s=4000,
)


@pytest.fixture
def dynamodb() -> Iterator[DynamoDBClient]:
    with tables(TABLE) as client:
        yield client


@pytest.fixture
def table(dynamodb: DynamoDBClient) -> RegionScoresTable:
    return RegionScoresTable(dynamodb, TABLE)


def test_what_was_written_is_read(table: RegionScoresTable) -> None:
    assert table.write(sweep_of(ROW))
    assert table.write(sweep_of(replace(ROW, region="eu-west-1", score=1.0)))

    assert table.read_scores("t3.medium") == {
        "us-east-1": RegionScore(
            region="us-east-1",
            score=0.1 + 0.2,
            missing_scored_signals=1,
            telemetry_status="partial",
            computed_at_s=100.25,
        ),
        "eu-west-1": RegionScore(
            region="eu-west-1",
            score=1.0,
            missing_scored_signals=1,
            telemetry_status="partial",
            computed_at_s=100.25,
        ),
    }


def test_a_type_without_scores_has_those_that_need_no_type(table: RegionScoresTable) -> None:
    table.write(sweep_of(ROW))
    table.write(sweep_of(replace(ROW, instance_type=ANY_TYPE, score=82.5)))

    assert table.read_scores("c7i.large")["us-east-1"].score == 82.5
    assert table.read_scores("t3.medium")["us-east-1"].score == ROW.score


def test_an_empty_table_has_no_scores(table: RegionScoresTable) -> None:
    assert table.read_scores("t3.medium") == {}


def test_a_newer_sweep_overwrites_an_older_one(table: RegionScoresTable) -> None:
    table.write(sweep_of(ROW))

    assert table.write(sweep_of(replace(ROW, sweep_id="sweep-2", computed_at_s=100.5, score=0.9)))
    assert table.read_scores("t3.medium")["us-east-1"].score == 0.9


@pytest.mark.parametrize("computed_at_s", [99.0, 100.25])
def test_an_older_sweep_never_overwrites_a_newer_one(
    table: RegionScoresTable, computed_at_s: float
) -> None:
    table.write(sweep_of(ROW))

    assert not table.write(
        sweep_of(replace(ROW, sweep_id="sweep-0", computed_at_s=computed_at_s, score=0.9))
    )
    assert table.read_scores("t3.medium")["us-east-1"].score == ROW.score


def test_an_older_sweep_still_writes_rows_that_no_newer_one_wrote(table: RegionScoresTable) -> None:
    table.write(sweep_of(ROW))

    assert table.write(
        sweep_of(replace(ROW, region="eu-west-1", sweep_id="sweep-0", computed_at_s=99.0))
    )


def test_a_repeated_write_of_one_sweep_is_a_write(table: RegionScoresTable) -> None:
    assert table.write(sweep_of(ROW))
    assert table.write(sweep_of(ROW))


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_never_written(
    table: RegionScoresTable, score: float
) -> None:
    with pytest.raises(ValueError, match="finite"):
        table.write(sweep_of(replace(ROW, score=score)))

    assert table.read_scores("t3.medium") == {}


def test_a_row_is_stored_under_the_agreed_names(
    table: RegionScoresTable, dynamodb: DynamoDBClient
) -> None:
    table.write(sweep_of(ROW))

    items = {item["pk"]["S"]: item for item in dynamodb.scan(TableName=TABLE)["Items"]}

    assert items["TYPE#t3.medium"] == {
        "pk": {"S": "TYPE#t3.medium"},
        "sk": {"S": "REGION#us-east-1"},
        "score": {"N": "0.30000000000000004"},
        "missing_scored_signals": {"N": "1"},
        "telemetry_status": {"S": "partial"},
        "signals": {
            "M": {
                "queue_depth": {
                    "M": {
                        "value": {"N": "3"},
                        "status": {"S": "ok"},
                        "observed_at": {"N": "99.5"},
                        "error": {"NULL": True},
                    }
                },
                "gpu_utilization": {
                    "M": {
                        "value": {"NULL": True},
                        "status": {"S": "failed"},
                        "observed_at": {"NULL": True},
                        "error": {"S": "Throttling: slow down"},
                    }
                },
            }
        },
        "reasons": {"L": [{"S": "telemetry is partial: GPU"}, {"S": "low queue depth (3)"}]},
        "computed_at": {"N": "100.25"},
        "sweep_id": {"S": "sweep-1"},
        "expires_at": {"N": "4000"},
    }


def test_beside_the_rows_stand_the_memory_and_the_record_of_the_sweep(
    table: RegionScoresTable, dynamodb: DynamoDBClient
) -> None:
    table.write(sweep_of(ROW))

    keys = {
        (item["pk"]["S"], item["sk"]["S"], item["expires_at"]["N"])
        for item in dynamodb.scan(TableName=TABLE)["Items"]
    }

    assert keys == {
        ("TYPE#t3.medium", "REGION#us-east-1", "4000"),
        ("MEMORY#us-east-1", "SIGNALS", "4000"),
        ("SWEEPS#us-east-1", "AT#0000000100250", "4000"),
    }


def test_a_memory_is_what_the_newest_sweep_left(table: RegionScoresTable) -> None:
    assert table.read_memory("us-east-1") is None

    table.write(sweep_of(ROW, memory=b"first"))
    older = replace(ROW, sweep_id="sweep-0", computed_at_s=99.0)
    table.write(sweep_of(older, memory=b"older"))

    assert table.read_memory("us-east-1") == b"first"
    assert table.read_memory("eu-west-1") is None


def test_a_sweep_that_meets_one_newer_row_writes_nothing(
    table: RegionScoresTable, dynamodb: DynamoDBClient
) -> None:
    newer = replace(ROW, instance_type="c7i.large", sweep_id="sweep-2", computed_at_s=200.0)
    table.write(sweep_of(newer))

    assert not table.write(sweep_of(ROW, replace(ROW, instance_type=ANY_TYPE)))
    assert {item["sweep_id"]["S"] for item in dynamodb.scan(TableName=TABLE)["Items"]} == {
        "sweep-2"
    }


def test_more_rows_than_a_transaction_holds_are_written(table: RegionScoresTable) -> None:
    rows = [replace(ROW, instance_type=f"x{number}.large") for number in range(120)]

    assert table.write(sweep_of(*rows))

    assert "us-east-1" in table.read_scores("x0.large")
    assert "us-east-1" in table.read_scores("x119.large")


def test_each_sweep_of_a_region_is_kept_as_it_was(
    table: RegionScoresTable, dynamodb: DynamoDBClient
) -> None:
    sweeps = [
        sweep_of(replace(ROW, sweep_id=f"at-{at_s}", computed_at_s=at_s)) for at_s in (100.0, 200.0)
    ]
    for sweep in sweeps:
        table.write(sweep)

    kept = dynamodb.query(
        TableName=TABLE,
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": history_partition("us-east-1")}},
    )["Items"]

    assert [decode_record(item[RECORD_ATTRIBUTE]["B"]) for item in kept] == [
        sweep.record for sweep in sweeps
    ]


def test_launching_reads_scores_without_loading_boto3_or_powertools() -> None:
    program = "import sys, lambdas.region_scores; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()

    assert {"boto3", "botocore", "aws_lambda_powertools", "pydantic"}.isdisjoint(loaded)
