"""`fleetcast scores replay`, on tables in moto."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from fleetcast.cli.command import fleetcast
from fleetcast.launch_history import RESERVATION_PREFIX
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
from lambdas.fleet_table import FleetTable
from lambdas.launch_table import Reservation, Token
from tests.tables import FLEET, REGION_SCORES, tables

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
ACCOUNT = "123456789012"  # moto's
IDLE_AND_DEAR = RegionSignals(spot_placement=1, spot_price_ratio=0.9)
BUSY_AND_CHEAP = RegionSignals(spot_price_ratio=0.1, queue_depth=50)


@pytest.fixture
def dynamodb() -> Iterator[DynamoDBClient]:
    with tables(REGION_SCORES, FLEET) as client:
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


def put_launch(
    dynamodb: DynamoDBClient,
    number: int,
    *,
    age_s: float,
    region: str | None = "us-east-1",
    instance_type: str = "t3.medium",
    account_id: str = ACCOUNT,
) -> None:
    """Write a launch as the function does, from before its first request to its end."""
    at_s = time.time() - age_s
    begun = Reservation(
        account_id=account_id,
        reservation_id=f"r-{number:017x}",
        instance_type=instance_type,
        launched_at_s=at_s,
        instance_ids=(),
        state="placing",
        undecided_until_s=at_s + 25,
    )
    token = Token(
        client_token=f"token-{number}",
        fingerprint="f" * 64,
        reservation_id=begun.reservation_id,
    )
    fleet = FleetTable(dynamodb, FLEET)
    fleet.launches.begin(begun, [], token, now_s=at_s)
    if region is not None:
        placed = msgspec.structs.replace(begun, state="placed", region=region)
        fleet.launches.place(placed, [])


def replay(*arguments: object) -> Result:
    names = ["--table", REGION_SCORES, "--fleet-table", FLEET]
    return CliRunner().invoke(fleetcast, ["scores", "replay", *names, *map(str, arguments)])


def launches_of(result: Result) -> Any:  # noqa: ANN401 - JSON
    assert result.exit_code == 0, result.output
    return msgspec.json.decode(result.stdout)["launches"]


def test_launches_that_would_have_gone_elsewhere_are_counted(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    put_sweep(dynamodb, age_s=HOUR_S, us_east_1=IDLE_AND_DEAR, eu_west_1=BUSY_AND_CHEAP)
    for number, age_s in enumerate((10, 20, 30, 2 * HOUR_S, 30 * HOUR_S)):
        put_launch(dynamodb, number, age_s=age_s)  # the last two: before any sweep, yesterday
    put_launch(dynamodb, 5, age_s=40, region="eu-west-1")
    put_launch(dynamodb, 6, age_s=50, region=None)
    put_launch(dynamodb, 7, age_s=60, account_id="999999999999")

    old_scores_count = ("--max-score-age", 2 * HOUR_S)
    result = replay("--weights", weights, *old_scores_count)

    assert "3 of 5 launches of account 123456789012 would have gone elsewhere" in result.output
    assert "Of these, no weights could have moved 1:" in result.output
    assert "Launches that no region is known to have taken: 1 more" in result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["us-east-1", "eu-west-1", "3"] in lines
    assert launches_of(replay("--weights", weights, *old_scores_count, "--json")) == {
        "placed": 5,
        "elsewhere": 3,
        "indifferent": 1,
        "unplaced": 1,
        "moves": [{"from_region": "us-east-1", "to_region": "eu-west-1", "launches": 3}],
    }


def test_only_the_launches_of_a_type_or_an_account_are_counted_if_asked_for(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    put_sweep(dynamodb, age_s=60, us_east_1=IDLE_AND_DEAR, eu_west_1=BUSY_AND_CHEAP)
    put_launch(dynamodb, 1, age_s=10)
    put_launch(dynamodb, 2, age_s=10, instance_type="t3.nano")
    for number in (3, 4, 5):
        put_launch(dynamodb, number, age_s=10, account_id="999999999999")

    by_type = launches_of(replay("--weights", weights, "--json", "--type", "t3.medium"))
    by_account = launches_of(replay("--weights", weights, "--json", "--account", "999999999999"))

    assert (by_type["placed"], by_type["elsewhere"]) == (1, 1)
    assert (by_account["placed"], by_account["elsewhere"]) == (3, 3)


def test_the_scores_in_force_when_the_time_begins_are_older_than_that(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    put_sweep(dynamodb, age_s=HOUR_S + 60, us_east_1=IDLE_AND_DEAR, eu_west_1=BUSY_AND_CHEAP)
    put_sweep(dynamodb, age_s=HOUR_S - 600, us_east_1=IDLE_AND_DEAR, eu_west_1=IDLE_AND_DEAR)
    put_launch(dynamodb, 1, age_s=HOUR_S - 60)

    result = replay("--weights", weights, "--since", "1h", "--json")

    assert launches_of(result)["elsewhere"] == 1
    assert msgspec.json.decode(result.stdout)["types"][0]["sweeps"] == 1  # of that hour


def test_the_history_of_a_region_that_is_scored_no_more_counts_if_it_took_launches(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    put_sweep(dynamodb, age_s=60, us_east_1=IDLE_AND_DEAR, eu_west_1=BUSY_AND_CHEAP)
    gone = encode_item({"pk": "TYPE#*", "sk": "REGION#us-east-1"})
    dynamodb.delete_item(TableName=REGION_SCORES, Key=gone)
    put_launch(dynamodb, 1, age_s=10)

    assert launches_of(replay("--weights", weights, "--json"))["elsewhere"] == 1


def test_a_time_without_launches_is_said_and_the_first_choices_are_shown(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    put_sweep(dynamodb, age_s=60, us_east_1=IDLE_AND_DEAR, eu_west_1=BUSY_AND_CHEAP)
    put_launch(dynamodb, 1, age_s=25 * HOUR_S)

    result = replay("--weights", weights)

    assert result.exit_code == 0, result.output
    assert "No region took a launch of account 123456789012 in that time" in result.stdout
    assert "eu-west-1 100%" in result.stdout


def test_a_launch_written_before_launches_were_kept_is_passed_over(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    put_sweep(dynamodb, age_s=60, us_east_1=IDLE_AND_DEAR)
    old = {"pk": f"ACCOUNT#{ACCOUNT}", "sk": f"{RESERVATION_PREFIX}r-1", "reservation_id": "r-1"}
    dynamodb.put_item(TableName=FLEET, Item=encode_item(old))

    assert launches_of(replay("--weights", weights, "--json"))["placed"] == 0


def test_what_other_weights_send_elsewhere_is_shown(
    dynamodb: DynamoDBClient, weights: Path
) -> None:
    for age_s in (0.5 * HOUR_S, HOUR_S):
        put_sweep(dynamodb, age_s=age_s, us_east_1=IDLE_AND_DEAR, eu_west_1=BUSY_AND_CHEAP)
    put_sweep(dynamodb, age_s=2 * HOUR_S, us_east_1=IDLE_AND_DEAR)
    put_sweep(dynamodb, age_s=30 * HOUR_S, us_east_1=IDLE_AND_DEAR)

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
        (b"{", "no JSON: "),
        (b"\xff", "no JSON: "),
        (b"[]", "no JSON object of weights"),
        (json.dumps(ALL_ON_PRICE | {"queue_depth": "much"}).encode(), "queue_depth is 'much'"),
        (json.dumps(ALL_ON_PRICE | {"queue_depth": True}).encode(), "queue_depth is True"),
        (json.dumps(ALL_ON_PRICE | {"queue_depth": math.nan}).encode(), "queue_depth is nan"),
        (json.dumps(ALL_ON_PRICE | {"queue_depth": math.inf}).encode(), "queue_depth is inf"),
        (b'{"spot_placement": 1}', "weight spot_price_ratio is missing"),
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
@pytest.mark.parametrize("option", ["--table", "--fleet-table"])
def test_a_table_that_is_not_there_is_said(weights: Path, option: str) -> None:
    result = replay("--weights", weights, option, "Absent")

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
