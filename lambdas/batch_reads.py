"""Reads many items of a table by their keys, consistently.

Launching imports this module: it must import neither boto3 nor Powertools.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from fleetcast.errors import FleetcastError
from lambdas.attribute_values import decode_item

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

_ITEMS_A_CALL: Final = 100
_TRIES: Final = 5
_PAUSE_S: Final = 0.05  # doubled each time


class TableBusy(FleetcastError):
    """DynamoDB did not read all that it was asked for, however often."""


def read_items(
    client: DynamoDBClient, table_name: str, keys: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Read the items with these keys, in any order; those that are not there are left out.

    keys: each once. Raises botocore's errors and TableBusy.
    """
    return [
        item
        for start in range(0, len(keys), _ITEMS_A_CALL)
        for item in _read(client, table_name, keys[start : start + _ITEMS_A_CALL])
    ]


def _read(
    client: DynamoDBClient, table_name: str, keys: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for tries in range(_TRIES):
        answer = client.batch_get_item(
            RequestItems={table_name: {"Keys": keys, "ConsistentRead": True}}
        )
        items += map(decode_item, answer["Responses"][table_name])
        left = answer["UnprocessedKeys"].get(table_name)
        if not left:
            return items
        keys = left["Keys"]
        time.sleep(_PAUSE_S * 2**tries)
    raise TableBusy(f"{len(keys)} items were not read")
