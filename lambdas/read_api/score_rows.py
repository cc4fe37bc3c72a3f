"""Rows of the RegionScores table, whole, as selection wants them.

Launching doesn't read them whole: it reads less, by lambdas.region_scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fleetcast.selection import ScoredRegion
from lambdas.attribute_values import decode_item, encode_item
from lambdas.region_scores import ANY_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient


def read_scored_regions(
    client: DynamoDBClient, table_name: str, instance_type: str | None
) -> tuple[str | None, dict[str, ScoredRegion]]:
    """Read each region's score with its signals, and of which type these scores are.

    A type that has none gets those that need no type, which are of type None. Raises botocore's
    errors, and KeyError or msgspec.ValidationError for a row that no sweep could have written.
    """
    if instance_type is not None:
        of_type = _query(client, table_name, instance_type)
        if of_type:
            return instance_type, of_type
    return None, _query(client, table_name, ANY_TYPE)


def _query(client: DynamoDBClient, table_name: str, instance_type: str) -> dict[str, ScoredRegion]:
    pages = client.get_paginator("query").paginate(
        TableName=table_name,
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues=encode_item({":pk": f"TYPE#{instance_type}"}),
    )
    rows = (_to_scored_region(decode_item(item)) for page in pages for item in page["Items"])
    return {row.region: row for row in rows}


def _to_scored_region(item: Mapping[str, Any]) -> ScoredRegion:
    return msgspec.convert(
        {
            **item,
            "region": item["sk"].removeprefix("REGION#"),
            "computed_at_s": item["computed_at"],
            "signals": {
                signal: {**reading, "observed_at_s": reading["observed_at"]}
                for signal, reading in item["signals"].items()
            },
        },
        ScoredRegion,
    )
