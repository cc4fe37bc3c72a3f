"""The RegionScores table: which sweep's row stands, and what a launch reads of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fleetcast.selection import RegionScore
from lambdas.region_scores import ANY_TYPE, Reading, RegionScoresTable, ScoreRow
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
    assert table.write(ROW)
    assert table.write(replace(ROW, region="eu-west-1", score=1.0))

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
    table.write(ROW)
    table.write(replace(ROW, instance_type=ANY_TYPE, score=82.5))

    assert table.read_scores("c7i.large")["us-east-1"].score == 82.5
    assert table.read_scores("t3.medium")["us-east-1"].score == ROW.score


def test_an_empty_table_has_no_scores(table: RegionScoresTable) -> None:
    assert table.read_scores("t3.medium") == {}


def test_a_newer_sweep_overwrites_an_older_one(table: RegionScoresTable) -> None:
    table.write(ROW)

    assert table.write(replace(ROW, sweep_id="sweep-2", computed_at_s=100.5, score=0.9))
    assert table.read_scores("t3.medium")["us-east-1"].score == 0.9


@pytest.mark.parametrize("computed_at_s", [99.0, 100.25])
def test_an_older_sweep_never_overwrites_a_newer_one(
    table: RegionScoresTable, computed_at_s: float
) -> None:
    table.write(ROW)

    assert not table.write(replace(ROW, sweep_id="sweep-0", computed_at_s=computed_at_s, score=0.9))
    assert table.read_scores("t3.medium")["us-east-1"].score == ROW.score


def test_an_older_sweep_still_writes_rows_that_no_newer_one_wrote(table: RegionScoresTable) -> None:
    table.write(ROW)

    assert table.write(replace(ROW, region="eu-west-1", sweep_id="sweep-0", computed_at_s=99.0))


def test_a_repeated_write_of_one_sweep_is_a_write(table: RegionScoresTable) -> None:
    assert table.write(ROW)
    assert table.write(ROW)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_never_written(
    table: RegionScoresTable, score: float
) -> None:
    with pytest.raises(ValueError, match="finite"):
        table.write(replace(ROW, score=score))

    assert table.read_scores("t3.medium") == {}


def test_a_row_is_stored_under_the_agreed_names(
    table: RegionScoresTable, dynamodb: DynamoDBClient
) -> None:
    table.write(ROW)

    [item] = dynamodb.scan(TableName=TABLE)["Items"]

    assert item == {
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


def test_launching_reads_scores_without_loading_boto3_or_powertools() -> None:
    program = "import sys, lambdas.region_scores; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()

    assert {"boto3", "botocore", "aws_lambda_powertools", "pydantic"}.isdisjoint(loaded)
