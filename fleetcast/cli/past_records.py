"""Reads what is kept of sweeps and launches from the tables themselves, page by page.

It needs dynamodb:Query on both tables. A fleet's history is too much for one answer of the API,
and for memory: sweeps come one by one. Raises botocore's errors, and InvalidInput for a record
that no sweep has written.
"""

from __future__ import annotations

import heapq
from itertools import chain
from typing import TYPE_CHECKING

from fleetcast.cli.rescored import age_order
from fleetcast.launch_history import RESERVATION_PREFIX, PastLaunch, account_partition
from fleetcast.score_history import (
    RECORD_ATTRIBUTE,
    SweepRecord,
    decode_record,
    history_partition,
    history_sort_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


def pages_of_launches(
    client: DynamoDBClient, table: str, *, account_id: str, since_s: float
) -> Iterator[Sequence[PastLaunch]]:
    """Yield an account's launches since then (epoch s), in no order; a page may be empty.

    Reservations are keyed by their ids, so all that are kept are read.
    """
    pages = client.get_paginator("query").paginate(
        TableName=table,
        KeyConditionExpression="pk = :pk AND begins_with(sk, :reservations)",
        FilterExpression="launched_at_s >= :since",
        ProjectionExpression="reservation_id, instance_type, launched_at_s, #region, pinned",
        ExpressionAttributeNames={"#region": "region"},  # a reserved word
        ExpressionAttributeValues={
            ":pk": {"S": account_partition(account_id)},
            ":reservations": {"S": RESERVATION_PREFIX},
            ":since": {"N": repr(since_s)},
        },
    )
    for page in pages:
        yield [_launch(item) for item in page["Items"]]


def _launch(item: Mapping[str, AttributeValueTypeDef]) -> PastLaunch:
    return PastLaunch(
        reservation_id=item["reservation_id"]["S"],
        instance_type=item["instance_type"]["S"],
        launched_at_s=float(item["launched_at_s"]["N"]),
        region=item["region"].get("S"),
        pinned=item["pinned"]["BOOL"],
    )


def scored_regions(client: DynamoDBClient, table: str) -> set[str]:
    """Return the regions that have a score now."""
    pages = client.get_paginator("query").paginate(
        TableName=table,
        KeyConditionExpression="pk = :pk",
        ProjectionExpression="sk",
        ExpressionAttributeValues={":pk": {"S": "TYPE#*"}},
    )
    return {item["sk"]["S"].removeprefix("REGION#") for page in pages for item in page["Items"]}


def records_in_order(
    client: DynamoDBClient, table: str, regions: Iterable[str], *, since_s: float
) -> Iterator[SweepRecord]:
    """Yield these regions' records since then (epoch s), oldest first.

    Before them comes each region's last older one, which was in force then. A page of each region
    is in memory at a time.
    """
    return heapq.merge(
        *(
            chain(
                _last_before(client, table, region, at_s=since_s),
                _records(client, table, region, since_s=since_s),
            )
            for region in sorted(regions)
        ),
        key=age_order,
    )


def _last_before(
    client: DynamoDBClient, table: str, region: str, *, at_s: float
) -> Iterator[SweepRecord]:
    answer = client.query(
        TableName=table,
        KeyConditionExpression="pk = :pk AND sk < :at",
        ExpressionAttributeValues={
            ":pk": {"S": history_partition(region)},
            ":at": {"S": history_sort_key(at_s)},
        },
        ScanIndexForward=False,
        Limit=1,
    )
    for item in answer["Items"]:
        yield decode_record(item[RECORD_ATTRIBUTE]["B"])


def _records(
    client: DynamoDBClient, table: str, region: str, *, since_s: float
) -> Iterator[SweepRecord]:
    pages = client.get_paginator("query").paginate(
        TableName=table,
        KeyConditionExpression="pk = :pk AND sk >= :since",
        ExpressionAttributeValues={
            ":pk": {"S": history_partition(region)},
            ":since": {"S": history_sort_key(since_s)},
        },
    )
    for page in pages:
        for item in page["Items"]:
            yield decode_record(item[RECORD_ATTRIBUTE]["B"])
