"""What replay reads of the tables: all of it, in order, whatever the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fleetcast.cli.past_records import pages_of_launches, records_in_order
from fleetcast.score_history import (
    RECORD_ATTRIBUTE,
    SweepRecord,
    encode_record,
    history_partition,
    history_sort_key,
)
from lambdas.attribute_values import encode_item
from lambdas.fleet_table import FleetTable
from lambdas.launch_table import Reservation
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

A, B = "us-east-1", "eu-west-1"
ACCOUNT = "123456789012"
PAGE = 3


@pytest.fixture
def dynamodb() -> Iterator[DynamoDBClient]:
    with tables(REGION_SCORES, FLEET) as client:
        yield client


def shorten_pages(dynamodb: DynamoDBClient) -> list[str]:
    """Make pages hold PAGE items; return a list that fills with the key of each page asked for."""
    asked: list[str] = []

    def shorten(params: dict[str, Any], **_: object) -> None:
        asked.append(params["ExpressionAttributeValues"][":pk"]["S"])
        params.setdefault("Limit", PAGE)

    events: Any = dynamodb.meta.events
    events.register("provide-client-params.dynamodb.Query", shorten)
    return asked


def put_record(dynamodb: DynamoDBClient, region: str, at_s: float) -> None:
    record = SweepRecord(region=region, sweep_id=f"sweep-{at_s}", computed_at_s=at_s, scores={})
    item = {
        "pk": history_partition(region),
        "sk": history_sort_key(at_s),
        RECORD_ATTRIBUTE: encode_record(record),
    }
    dynamodb.put_item(TableName=REGION_SCORES, Item=encode_item(item))


def put_launch(
    dynamodb: DynamoDBClient, number: int, at_s: float, *, account_id: str = ACCOUNT
) -> Reservation:
    launch = Reservation(
        account_id=account_id,
        reservation_id=f"r-{number:04}",
        instance_type="t3.medium",
        launched_at_s=at_s,
        region=A if number % 2 else None,
        pinned=number % 3 == 0,
        instance_ids=(),
        state="placed",
        undecided_until_s=at_s,
    )
    FleetTable(dynamodb, FLEET).launches.begin(launch, [], None, now_s=at_s)
    return launch


def test_records_of_several_regions_and_pages_come_oldest_first(dynamodb: DynamoDBClient) -> None:
    for at_s in range(100, 1100, 100):
        put_record(dynamodb, A, at_s)
        put_record(dynamodb, B, at_s + 0.25)
    asked = shorten_pages(dynamodb)

    records = list(records_in_order(dynamodb, REGION_SCORES, {A, B}, since_s=100))

    assert [(one.computed_at_s, one.region) for one in records] == [
        (at_s + later, region)
        for at_s in range(100, 1100, 100)
        for later, region in ((0, A), (0.25, B))
    ]
    assert len(asked) > 6


def test_the_last_record_before_the_time_comes_first_and_no_older_one(
    dynamodb: DynamoDBClient,
) -> None:
    for at_s in (100, 200, 300, 400):
        put_record(dynamodb, A, at_s)
    put_record(dynamodb, B, 50)

    records = records_in_order(dynamodb, REGION_SCORES, {A, B}, since_s=300)

    assert [(one.computed_at_s, one.region) for one in records] == [
        (50, B),
        (200, A),
        (300, A),
        (400, A),
    ]


def test_no_more_than_a_page_of_each_region_is_read_ahead(dynamodb: DynamoDBClient) -> None:
    for at_s in range(100, 1100, 100):
        put_record(dynamodb, A, at_s)
        put_record(dynamodb, B, at_s)
    asked = shorten_pages(dynamodb)

    records = records_in_order(dynamodb, REGION_SCORES, {A, B}, since_s=100)
    for _ in range(4):
        next(records)

    assert len(asked) == 4, "one for what is older and one page, of each region"


def test_launches_of_all_pages_are_read_as_they_were_written(dynamodb: DynamoDBClient) -> None:
    written = [put_launch(dynamodb, number, 100.5 + number) for number in range(20)]
    put_launch(dynamodb, 50, 200, account_id="999999999999")
    asked = shorten_pages(dynamodb)

    pages = list(pages_of_launches(dynamodb, FLEET, account_id=ACCOUNT, since_s=104.5))

    launches = [launch for page in pages for launch in page]
    assert [
        (one.reservation_id, one.instance_type, one.launched_at_s, one.region, one.pinned)
        for one in launches
    ] == [
        (one.reservation_id, one.instance_type, one.launched_at_s, one.region, one.pinned)
        for one in written[4:]
    ]
    assert max(len(page) for page in pages) <= PAGE
    assert set(asked) == {f"ACCOUNT#{ACCOUNT}"}
