"""The Fleet table's keys, as DynamoDB takes them.

    ACCOUNT#id  INSTANCE#i-…     an InstanceRecord
    ACCOUNT#id  RESERVATION#r-…  a launch: its instances, where it went, whether it is decided
    ACCOUNT#id  TOKEN#…          which launch a ClientToken stands for
    REGION#…    NODE#…           a NodeRecord, written by reconcile

Launching imports this module: it must import neither boto3 nor Powertools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from fleetcast.launch_history import RESERVATION_PREFIX, account_partition
from lambdas.attribute_values import encode_item
from lambdas.live_index import region_partition

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

INSTANCE_PREFIX: Final = "INSTANCE#"
NODE_PREFIX: Final = "NODE#"
_TOKEN_PREFIX: Final = "TOKEN#"  # noqa: S105 - a ClientToken is no secret

Key: TypeAlias = "dict[str, AttributeValueTypeDef]"


def instance_key(account_id: str, instance_id: str) -> Key:
    """Return the key of an instance's record."""
    return _key(account_partition(account_id), f"{INSTANCE_PREFIX}{instance_id}")


def reservation_key(account_id: str, reservation_id: str) -> Key:
    """Return the key of a launch."""
    return _key(account_partition(account_id), f"{RESERVATION_PREFIX}{reservation_id}")


def token_key(account_id: str, client_token: str) -> Key:
    """Return the key of a ClientToken."""
    return _key(account_partition(account_id), f"{_TOKEN_PREFIX}{client_token}")


def node_key(region: str, node: str) -> Key:
    """Return the key of a node's record."""
    return _key(region_partition(region), f"{NODE_PREFIX}{node}")


def _key(partition: str, sort_key: str) -> Key:
    return encode_item({"pk": partition, "sk": sort_key})
