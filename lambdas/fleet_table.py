"""The Fleet table: instances of each account, the nodes, and the launches (lambdas.launch_table).

Launching imports this module: it works on a plain botocore client, and must import neither
boto3 nor Powertools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.launch_history import account_partition
from lambdas.attribute_values import decode_item, encode_item
from lambdas.batch_reads import read_items
from lambdas.fleet_keys import INSTANCE_PREFIX, NODE_PREFIX, instance_key
from lambdas.launch_table import LaunchTable
from lambdas.live_index import LIVE_KEY, region_partition
from lambdas.records import TERMINATED_VISIBLE_S, InstanceRecord, NodeRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

SEEN_WITHIN_S: Final = 600.0


class FleetTable:
    """The table over a DynamoDB client, boto3's or botocore's. All methods raise botocore's."""

    def __init__(self, client: DynamoDBClient, name: str) -> None:
        self.launches = LaunchTable(client, name)
        self._client = client
        self._name = name

    # --- reading ---------------------------------------------------------------------------

    def instances(self, account_id: str) -> list[InstanceRecord]:
        """Read all instances of an account, the terminated ones too until DynamoDB drops them.

        Consistent: what RunInstances has returned is there.
        """
        pages = self._client.get_paginator("query").paginate(
            TableName=self._name,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :instances)",
            ExpressionAttributeValues=encode_item(
                {":pk": account_partition(account_id), ":instances": INSTANCE_PREFIX}
            ),
            ConsistentRead=True,
        )
        return [
            msgspec.convert(decode_item(item), InstanceRecord)
            for page in pages
            for item in page["Items"]
        ]

    def instances_by_id(self, account_id: str, instance_ids: Sequence[str]) -> list[InstanceRecord]:
        """Read these instances, in this order; those that are not there are left out.

        Raises TableBusy.
        """
        wanted = list(dict.fromkeys(instance_ids))
        keys = [instance_key(account_id, one) for one in wanted]
        records = [
            msgspec.convert(item, InstanceRecord)
            for item in read_items(self._client, self._name, keys)
        ]
        found = {record.instance_id: record for record in records}
        return [found[one] for one in wanted if one in found]

    def nodes(self, region: str) -> list[NodeRecord]:
        """Read what is known of a region's nodes, also of those that have fallen silent."""
        pages = self._client.get_paginator("query").paginate(
            TableName=self._name,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :nodes)",
            ExpressionAttributeValues=encode_item(
                {":pk": region_partition(region), ":nodes": NODE_PREFIX}
            ),
            ConsistentRead=True,
        )
        return [
            msgspec.convert(decode_item(item), NodeRecord)
            for page in pages
            for item in page["Items"]
        ]

    def seen_nodes(self, region: str, *, now_s: float) -> frozenset[str]:
        """Return the names of the nodes that must be heard before a region has been heard whole.

        One that has been silent for longer than SEEN_WITHIN_S is left out: what it holds is for
        reconcile to clear up when it is back.
        """
        return frozenset(
            node.node for node in self.nodes(region) if now_s - node.last_seen_s < SEEN_WITHIN_S
        )

    # --- the instances' lives --------------------------------------------------------------

    def change_state(self, before: InstanceRecord, after: InstanceRecord) -> bool:
        """Move an instance on to another state. Return False if it had moved on already."""
        changed = {
            "#state": after.state,
            "state_reason_code": after.state_reason_code,
            "state_reason_message": after.state_reason_message,
            "shutdown_asked_at_s": after.shutdown_asked_at_s,
            "terminated_at_s": after.terminated_at_s,
            "private_ip_address": after.private_ip_address,
            "mac_address": after.mac_address,
        }
        if after.terminated_at_s is not None:
            changed["expires_at"] = int(after.terminated_at_s) + TERMINATED_VISIBLE_S
        sets = ", ".join(f"{name} = :{name.lstrip('#')}" for name in changed)
        values = {f":{name.lstrip('#')}": value for name, value in changed.items()}
        removes = ""
        if after.state == "terminated":
            # Nobody looks after it any more, nor asks whether its node answers.
            removes = f" REMOVE {LIVE_KEY}, unreachable_since_s"
        try:
            self._client.update_item(
                TableName=self._name,
                Key=instance_key(before.account_id, before.instance_id),
                UpdateExpression=f"SET {sets}{removes}",
                ConditionExpression="#state = :before AND attempt = :attempt",
                ExpressionAttributeNames={"#state": "state"},
                ExpressionAttributeValues=encode_item(
                    values | {":before": before.state, ":attempt": before.attempt}
                ),
            )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True
