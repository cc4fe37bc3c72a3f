"""What only reconcile reads and writes in the Fleet table.

Every write is conditional on what was read: two reconciles at once do what one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from fleetcast.messages import InstanceState
from lambdas.attribute_values import decode_item, encode_item
from lambdas.batch_reads import read_items
from lambdas.fleet_keys import instance_key, node_key, reservation_key
from lambdas.launch_table import Reservation
from lambdas.live_index import LIVE_INDEX, LIVE_KEY, UNDECIDED, region_partition
from lambdas.records import InstanceRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

    from lambdas.records import NodeRecord

# An account and an instance's or a launch's id in it.
Owned: TypeAlias = tuple[str, str]


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
        keys = [instance_key(*one) for one in dict.fromkeys(ids)]
        items = read_items(self._client, self._name, keys)
        found = [msgspec.convert(item, InstanceRecord) for item in items]
        return {(one.account_id, one.instance_id): one for one in found}

    def reservations(self, ids: Iterable[Owned]) -> dict[Owned, Reservation]:
        """Read these launches, consistently; those that are not there are left out.

        Raises TableBusy.
        """
        keys = [reservation_key(*one) for one in dict.fromkeys(ids)]
        items = read_items(self._client, self._name, keys)
        found = [msgspec.convert(item, Reservation) for item in items]
        return {(one.account_id, one.reservation_id): one for one in found}

    # --- writing ---------------------------------------------------------------------------

    def put_node(self, node: NodeRecord) -> bool:
        """Write what a node said. Return False if it has been asked again meanwhile."""
        return self._written(
            self._client.put_item,
            Item=encode_item(msgspec.to_builtins(node)) | node_key(node.region, node.node),
            ConditionExpression="attribute_not_exists(pk) OR last_seen_s <= :seen",
            ExpressionAttributeValues=encode_item({":seen": node.last_seen_s}),
        )

    def forget_node(self, node: NodeRecord) -> bool:
        """Remove a node that was not seen since. Return False if it was."""
        return self._written(
            self._client.delete_item,
            Key=node_key(node.region, node.node),
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
        return self._written(
            self._client.update_item,
            Key=instance_key(instance.account_id, instance.instance_id),
            ExpressionAttributeValues=encode_item({**values, ":attempt": instance.attempt}),
            **update,
        )

    def _written(self, write: Any, **request: object) -> bool:  # noqa: ANN401 - any of the client's
        try:
            write(TableName=self._name, **request)
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True
