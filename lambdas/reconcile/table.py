"""What only reconcile reads and writes in the Fleet table.

Every write is conditional on what was read: two reconciles at once do what one does.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from fleetcast.errors import FleetcastError
from fleetcast.launch_history import RESERVATION_PREFIX, account_partition
from fleetcast.messages import InstanceState
from lambdas.attribute_values import decode_item, encode_item
from lambdas.fleet_table import NODE_PREFIX, Reservation
from lambdas.live_index import LIVE_INDEX, LIVE_KEY, UNDECIDED, region_partition
from lambdas.records import InstanceRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

    from lambdas.records import NodeRecord

_GET_ITEMS: Final = 100
_GET_TRIES: Final = 5
_GET_PAUSE_S: Final = 0.05  # doubled each time

_T = TypeVar("_T", InstanceRecord, Reservation)
# An account and an instance's or a launch's id in it.
Owned: TypeAlias = tuple[str, str]


class TableBusy(FleetcastError):
    """DynamoDB did not read all that it was asked for, however often."""


class LiveInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A placed instance that is not terminated, as the index has it: maybe of a moment ago."""

    account_id: str
    instance_id: str
    reservation_id: str
    node: str
    attempt: int
    state: InstanceState
    unreachable_since_s: float | None = None


class UndecidedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch without an end, as the index has it. undecided_until_s: as Reservation's."""

    account_id: str
    reservation_id: str
    undecided_until_s: float


class ReconcileTable:
    """The table over a DynamoDB client, boto3's or botocore's. All methods raise botocore's."""

    def __init__(self, client: DynamoDBClient, name: str) -> None:
        self._client = client
        self._name = name

    # --- reading ---------------------------------------------------------------------------

    def live_instances(self, region: str) -> list[LiveInstance]:
        """Read the instances of a region from the index."""
        found = [msgspec.convert(one, LiveInstance) for one in self._live(region_partition(region))]
        return [one for one in found if one.state != "terminated"]

    def undecided_launches(self) -> list[UndecidedLaunch]:
        """Read the launches without an end from the index, those that wait longest first."""
        found = [msgspec.convert(one, UndecidedLaunch) for one in self._live(UNDECIDED)]
        return sorted(found, key=lambda one: (one.undecided_until_s, one.reservation_id))

    def _live(self, live_key: str) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("query").paginate(
            TableName=self._name,
            IndexName=LIVE_INDEX,
            KeyConditionExpression=f"{LIVE_KEY} = :live",
            ExpressionAttributeValues=encode_item({":live": live_key}),
        )
        return [decode_item(item) for page in pages for item in page["Items"]]

    def instances(self, ids: Iterable[Owned]) -> dict[Owned, InstanceRecord]:
        """Read these instances, consistently; those that are not there are left out.

        Raises TableBusy.
        """
        found = self._read(ids, prefix="INSTANCE#", kind=InstanceRecord)
        return {(one.account_id, one.instance_id): one for one in found}

    def reservations(self, ids: Iterable[Owned]) -> dict[Owned, Reservation]:
        """Read these launches, consistently; those that are not there are left out.

        Raises TableBusy.
        """
        found = self._read(ids, prefix=RESERVATION_PREFIX, kind=Reservation)
        return {(one.account_id, one.reservation_id): one for one in found}

    def _read(self, ids: Iterable[Owned], *, prefix: str, kind: type[_T]) -> list[_T]:
        keys = [
            encode_item({"pk": account_partition(account_id), "sk": f"{prefix}{one}"})
            for account_id, one in dict.fromkeys(ids)
        ]
        return [
            msgspec.convert(decode_item(item), kind)
            for start in range(0, len(keys), _GET_ITEMS)
            for item in self._items(keys[start : start + _GET_ITEMS])
        ]

    def _items(self, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        items: list[Any] = []
        for tries in range(_GET_TRIES):
            answer = self._client.batch_get_item(
                RequestItems={self._name: {"Keys": keys, "ConsistentRead": True}}
            )
            items += answer["Responses"][self._name]
            left = answer["UnprocessedKeys"].get(self._name)
            if not left:
                return items
            keys = left["Keys"]
            time.sleep(_GET_PAUSE_S * 2**tries)
        raise TableBusy(f"{len(keys)} items were not read")

    # --- writing ---------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> bool:
        """Write what a node said. Return False if it has been asked again meanwhile."""
        item = msgspec.to_builtins(node) | _node_key(node)
        return self._written(
            self._client.put_item,
            Item=encode_item(item),
            ConditionExpression="attribute_not_exists(pk) OR last_seen_s <= :seen",
            ExpressionAttributeValues=encode_item({":seen": node.last_seen_s}),
        )

    def forget_node(self, node: NodeRecord) -> bool:
        """Remove a node that was not seen since. Return False if it was."""
        return self._written(
            self._client.delete_item,
            Key=encode_item(_node_key(node)),
            ConditionExpression="last_seen_s = :seen",
            ExpressionAttributeValues=encode_item({":seen": node.last_seen_s}),
        )

    def mark_unreachable(self, instance: LiveInstance, *, since_s: float) -> bool:
        """Record since when an instance's node doesn't answer, if that isn't recorded yet."""
        return self._update(
            instance,
            UpdateExpression="SET unreachable_since_s = :since",
            ConditionExpression=(
                "attempt = :attempt AND #state <> :terminated AND "
                "(attribute_not_exists(unreachable_since_s) OR unreachable_since_s = :never)"
            ),
            ExpressionAttributeNames={"#state": "state"},
            values={":since": since_s, ":terminated": "terminated", ":never": None},
        )

    def mark_reachable(self, instance: LiveInstance) -> bool:
        """Record that an instance's node answers again."""
        return self._update(
            instance,
            UpdateExpression="REMOVE unreachable_since_s",
            ConditionExpression="attempt = :attempt AND unreachable_since_s = :since",
            values={":since": instance.unreachable_since_s},
        )

    def _update(
        self, instance: LiveInstance, *, values: Mapping[str, object], **update: object
    ) -> bool:
        key = {
            "pk": account_partition(instance.account_id),
            "sk": f"INSTANCE#{instance.instance_id}",
        }
        return self._written(
            self._client.update_item,
            Key=encode_item(key),
            ExpressionAttributeValues=encode_item({**values, ":attempt": instance.attempt}),
            **update,
        )

    def _written(self, write: Any, **request: object) -> bool:  # noqa: ANN401 - any of the client's
        try:
            write(TableName=self._name, **request)
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True


def _node_key(node: NodeRecord) -> dict[str, str]:
    return {"pk": region_partition(node.region), "sk": f"{NODE_PREFIX}{node.node}"}
