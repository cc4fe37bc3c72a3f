"""DynamoDB tables as the CDK app makes them, in moto, behind a plain botocore client."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import botocore.session
from moto import mock_aws

from lambdas.live_index import LIVE_ATTRIBUTES, LIVE_INDEX, LIVE_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

FLEET: Final = "Fleet"
REGION_SCORES: Final = "RegionScores"


@contextlib.contextmanager
def tables(*names: str) -> Iterator[DynamoDBClient]:
    """Make empty tables for as long as the context lasts."""
    with mock_aws():
        client: Any = _session().create_client("dynamodb", region_name="us-east-1")
        _call_one_at_a_time(client)
        for name in names:
            create_table(client, name)
        yield client


def _call_one_at_a_time(client: Any) -> None:  # noqa: ANN401 - its stubs know no such method
    """Keep threads apart: a transaction that moto cancels undoes what others wrote meanwhile."""
    lock = threading.RLock()
    call = client._make_api_call  # noqa: SLF001 - what all operations go through

    def call_alone(*what: object) -> object:
        with lock:
            return call(*what)

    client._make_api_call = call_alone  # noqa: SLF001


def create_table(client: DynamoDBClient, name: str) -> None:
    """Make an empty table; Fleet has its index."""
    index: Any = {}
    if name == FLEET:
        index["GlobalSecondaryIndexes"] = [
            {
                "IndexName": LIVE_INDEX,
                "KeySchema": [
                    {"AttributeName": LIVE_KEY, "KeyType": "HASH"},
                    {"AttributeName": "sk", "KeyType": "RANGE"},
                ],
                "Projection": {
                    "ProjectionType": "INCLUDE",
                    "NonKeyAttributes": [*LIVE_ATTRIBUTES],
                },
            }
        ]
    keys = ["pk", "sk", *([LIVE_KEY] if index else [])]
    client.create_table(
        TableName=name,
        KeySchema=[
            {"AttributeName": "pk", "KeyType": "HASH"},
            {"AttributeName": "sk", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        BillingMode="PAY_PER_REQUEST",
        **index,
    )


@functools.cache
def _session() -> botocore.session.Session:
    # It keeps what it has read of DynamoDB's model: the next client takes no time.
    session = botocore.session.Session()
    session.set_credentials("test", "test")
    return session
