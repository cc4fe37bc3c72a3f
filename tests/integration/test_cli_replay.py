"""`fleetcast scores replay`, on a table in moto."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner, Result

from fleetcast.cli.command import fleetcast
from fleetcast.score_history import (
    RECORD_ATTRIBUTE,
    PastScore,
    SweepRecord,
    encode_record,
    history_partition,
    history_sort_key,
)
from fleetcast.scoring import RegionSignals, weighted_score
from lambdas.attribute_values import encode_item
from tests.tables import REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_dynamodb import DynamoDBClient

ALL_ON_PRICE = {
    "spot_placement": 0,
    "spot_price_ratio": 1,
    "queue_depth": 0,
    "gpu_utilization": 0,
    "running_jobs": 0,
    "capacity_block_trend": 0,
}
HOUR_S = 3600


@pytest.fixture
def dynamodb() -> Iterator[DynamoDBClient]:
    with tables(REGION_SCORES) as client:
        yield client


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "new.json"
    path.write_bytes(msgspec.json.encode(ALL_ON_PRICE))
    return path


def put_sweep(dynamodb: DynamoDBClient, *, age_s: float, **signals: RegionSignals) -> None:
    """Write a sweep's scores and records of t3.medium by region (us_east_1=…)."""
    at_s = time.time() - age_s
    for name, seen in signals.items():
        region = name.replace("_", "-")
        record = SweepRecord(
            region=region,
            sweep_id=f"sweep-{at_s}",
            computed_at_s=at_s,
            scores={"t3.medium": PastScore(weighted_score(seen), 0, "complete", seen)},
        )
        for item in (
            {"pk": "TYPE#*", "sk": f"REGION#{region}"},
            {
                "pk": history_partition(region),
                "sk": history_sort_key(at_s),
                RECORD_ATTRIBUTE: encode_record(record),
            },
        ):
            dynamodb.put_item(TableName=REGION_SCORES, Item=encode_item(item))


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(
        fleetcast, ["scores", "replay", "--table", REGION_SCORES, *map(str, arguments)]
    )


def test_what_other_weights_send_elsewhere_is_shown(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    idle_and_dear = RegionSignals(spot_placement=1, spot_price_ratio=0.9)
    cheap = RegionSignals(spot_price_ratio=0.1, queue_depth=50)
    for age_s in (0.5 * HOUR_S, HOUR_S):
        put_sweep(dynamodb, age_s=age_s, us_east_1=idle_and_dear, eu_west_1=cheap)
    put_sweep(dynamodb, age_s=2 * HOUR_S, us_east_1=idle_and_dear)
    put_sweep(dynamodb, age_s=30 * HOUR_S, us_east_1=idle_and_dear)

    result = replay("--weights", weights)
    decoded = msgspec.json.decode(replay("--weights", weights, "--json").stdout)

    assert result.exit_code == 0, result.output
    assert "us-east-1 100%" in result.stdout
    assert "eu-west-1 67%" in result.stdout
    assert "66.7%" in result.stdout
    assert decoded["types"][0]["sweeps"] == 3  # not the one of yesterday
    assert decoded["types"][0]["elsewhere_share"] == pytest.approx(2 / 3)


def test_a_longer_time_takes_older_sweeps_in(dynamodb: DynamoDBClient, weights: Path) -> None:
    put_sweep(dynamodb, age_s=30 * HOUR_S, us_east_1=RegionSignals())

    assert replay("--weights", weights, "--since", "2d").exit_code == 0
    assert replay("--weights", weights, "--since", "29h").exit_code == 1


def test_a_type_without_history_is_said(dynamodb: DynamoDBClient, weights: Path) -> None:
    put_sweep(dynamodb, age_s=HOUR_S, us_east_1=RegionSignals())

    result = replay("--weights", weights, "--type", "t3.nano")

    assert result.exit_code == 1
    assert "has no scores of t3.nano from that time" in result.output


@pytest.mark.usefixtures("dynamodb")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "JSON"),
        (b"[]", "Expected `object`"),
        (b'{"spot_placement": "much"}', "Expected `float`"),
        (b'{"price": 1}', "weight 'price' is unknown"),
        (msgspec.json.encode(ALL_ON_PRICE | {"queue_depth": 1}), "sum to 2"),
        (msgspec.json.encode(ALL_ON_PRICE | {"queue_depth": -1}), "queue_depth is -1"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(weights: Path, content: bytes, words: str) -> None:
    weights.write_bytes(content)

    result = replay("--weights", weights)

    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


@pytest.mark.usefixtures("dynamodb")
@pytest.mark.parametrize("since", ["24", "0h", "-1h", "1w", "h", "99999999h"])
def test_what_is_no_length_of_time_is_refused(weights: Path, since: str) -> None:
    result = replay("--weights", weights, "--since", since)

    assert result.exit_code == 2
    assert "is no length of time" in result.output


@pytest.mark.usefixtures("dynamodb")
def test_a_table_that_is_not_there_is_said(weights: Path) -> None:
    result = replay("--weights", weights, "--table", "Absent")

    assert result.exit_code == 1
    assert "table Absent can't be read" in result.output


def test_a_damaged_record_is_said(dynamodb: DynamoDBClient, weights: Path) -> None:
    put_sweep(dynamodb, age_s=HOUR_S, us_east_1=RegionSignals())
    item = {
        "pk": history_partition("us-east-1"),
        "sk": history_sort_key(time.time()),
        RECORD_ATTRIBUTE: b"damaged",
    }
    dynamodb.put_item(TableName=REGION_SCORES, Item=encode_item(item))

    result = replay("--weights", weights)

    assert result.exit_code == 1
    assert "no record of a sweep" in result.output


@pytest.mark.usefixtures("dynamodb")
def test_absent_credentials_are_said(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    result = replay("--weights", weights)

    assert result.exit_code == 1
    assert "no AWS credentials are configured" in result.output


@pytest.mark.usefixtures("dynamodb")
def test_an_absent_aws_region_is_said(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")

    result = replay("--weights", weights)

    assert result.exit_code == 1
    assert "give AWS_REGION" in result.output
