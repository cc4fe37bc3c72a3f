"""The Fleet table: instances, reservations and client tokens of each account, and the nodes.

    ACCOUNT#id  INSTANCE#i-…     an InstanceRecord
    ACCOUNT#id  RESERVATION#r-…  a launch: its instances, where it went, whether it is decided
    ACCOUNT#id  TOKEN#…          which launch a ClientToken stands for
    REGION#…    NODE#…           a NodeRecord, written by reconcile

A launch is written before its first request leaves, so that what runs anywhere has a record.
Launching imports this module: it works on a plain botocore client, and must import neither
boto3 nor Powertools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from fleetcast.errors import FleetcastError
from fleetcast.launch_history import (
    LAUNCH_KEPT_S,
    RESERVATION_PREFIX,
    PastLaunch,
    account_partition,
)
from lambdas.attribute_values import decode_item, encode_item
from lambdas.live_index import LIVE_KEY, UNDECIDED, region_partition
from lambdas.records import TERMINATED_VISIBLE_S, InstanceRecord, NodeRecord
from lambdas.transactions import cancellation_reasons, may_pass, transact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import TransactWriteItemTypeDef

# A transaction holds 100 items and 4 MB; an instance with the largest tags takes 77 KB.
_TRANSACTION_INSTANCES: Final = 48
_GET_ITEMS: Final = 100
TOKEN_KEPT_S: Final = 7 * 86_400
NODE_PREFIX: Final = "NODE#"


class Reservation(PastLaunch, frozen=True, kw_only=True):
    """One launch. undecided_until_s: when a launch still `placing` must have died (epoch s)."""

    account_id: str
    instance_ids: tuple[str, ...]
    state: Literal["placing", "placed", "unknown"]
    undecided_until_s: float


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A ClientToken and what it was used for. fingerprint: of the other parameters."""

    client_token: str
    fingerprint: str
    reservation_id: str


class TokenTaken(FleetcastError):
    """The ClientToken stands for another launch already."""

    def __init__(self, token: Token) -> None:
        self.token = token
        super().__init__(f"the client token stands for {token.reservation_id}")


class LaunchConflict(FleetcastError):
    """Another launch with the same ClientToken is being written at this moment."""


class FleetTable:
    """The table over a DynamoDB client, boto3's or botocore's. All methods raise botocore's."""

    def __init__(self, client: DynamoDBClient, name: str) -> None:
        self._client = client
        self._name = name

    # --- launching -------------------------------------------------------------------------

    def begin_launch(
        self,
        reservation: Reservation,
        records: Sequence[InstanceRecord],
        token: Token | None,
        *,
        now_s: float,
    ) -> None:
        """Write a launch whole, before anything is asked for.

        Raises TokenTaken, or LaunchConflict when that can't be told yet: try again.

        Beyond 48 instances it takes several transactions. The token is in the first one, so two
        launches never share it; if a later one fails, the launch is dropped again. A function
        that dies between two leaves records without a node.
        """
        account = reservation.account_id
        head = [self._put_reservation(reservation)]
        if token is not None:
            key = f"TOKEN#{token.client_token}"
            expires = int(now_s) + TOKEN_KEPT_S
            head.insert(0, self._put(account, key, token, expires_at=expires))
        first, *others = _parts(
            [self._put(account, f"INSTANCE#{one.instance_id}", one) for one in records]
        )
        self._begin(reservation, [*head, *first])
        try:
            for part in others:
                self._begin(reservation, part)
        except Exception:
            self.drop_launch(reservation, token)  # nothing has been asked for yet
            raise

    def _begin(self, reservation: Reservation, writes: Sequence[TransactWriteItemTypeDef]) -> None:
        try:
            self._client.transact_write_items(TransactItems=writes)
        except self._client.exceptions.TransactionCanceledException as error:
            reasons = cancellation_reasons(error)
            stored = [decode_item(reason["Item"]) for reason in reasons if "Item" in reason]
            if any(item["reservation_id"] == reservation.reservation_id for item in stored):
                return  # the client has repeated a transaction whose answer was lost
            if stored:
                raise TokenTaken(msgspec.convert(stored[0], Token)) from error
            if may_pass(reasons):
                raise LaunchConflict from error
            raise

    def finish_launch(
        self,
        reservation: Reservation,
        placed: Sequence[InstanceRecord],
        unplaced: Iterable[str],
    ) -> None:
        """Write where the instances are, drop those that found no place, and the launch's state.

        reservation: as it is now, with the instances that remain.
        """
        account = reservation.account_id
        writes: list[TransactWriteItemTypeDef] = [
            {
                "Update": {
                    "TableName": self._name,
                    "Key": _key(account, f"INSTANCE#{record.instance_id}"),
                    # Only what placing decides: the state may have moved on meanwhile.
                    "UpdateExpression": (
                        "SET #region = :region, #zone = :zone, #node = :node, attempt = :attempt, "
                        f"{LIVE_KEY} = :live"
                    ),
                    "ExpressionAttributeNames": {
                        "#region": "region",
                        "#zone": "zone",
                        "#node": "node",
                    },
                    "ExpressionAttributeValues": encode_item(
                        {
                            ":region": record.region,
                            ":zone": record.zone,
                            ":node": record.node,
                            ":attempt": record.attempt,
                            ":live": region_partition(record.region or ""),
                        }
                    ),
                }
            }
            for record in placed
        ]
        writes += [self._delete(account, f"INSTANCE#{one}") for one in unplaced]
        self._end(writes, [self._put_reservation(reservation, replace=True)])

    def drop_launch(self, reservation: Reservation, token: Token | None) -> None:
        """Remove a launch that started nothing, so that its token may be used again."""
        account = reservation.account_id
        writes = [self._delete(account, f"INSTANCE#{one}") for one in reservation.instance_ids]
        head = [self._delete(account, _reservation_sort_key(reservation.reservation_id))]
        if token is not None:
            head.append(self._delete(account, f"TOKEN#{token.client_token}"))
        self._end(writes, head)

    def _end(
        self,
        writes: Sequence[TransactWriteItemTypeDef],
        head: Sequence[TransactWriteItemTypeDef],
    ) -> None:
        """Write what decides the launch together with the last of its instances."""
        *others, last = _parts(writes)
        for part in others:
            transact(self._client, part)
        transact(self._client, [*last, *head])

    # --- reading ---------------------------------------------------------------------------

    def reservation(self, account_id: str, reservation_id: str) -> Reservation | None:
        """Read a launch, or None if it was dropped."""
        answer = self._client.get_item(
            TableName=self._name,
            Key=_key(account_id, _reservation_sort_key(reservation_id)),
            ConsistentRead=True,
        )
        item = answer.get("Item")
        return msgspec.convert(decode_item(item), Reservation) if item else None

    def instances(self, account_id: str) -> list[InstanceRecord]:
        """Read all instances of an account, the terminated ones too until DynamoDB drops them.

        Consistent: what RunInstances has returned is there.
        """
        pages = self._client.get_paginator("query").paginate(
            TableName=self._name,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :instances)",
            ExpressionAttributeValues=encode_item(
                {":pk": account_partition(account_id), ":instances": "INSTANCE#"}
            ),
            ConsistentRead=True,
        )
        return [_record(decode_item(item)) for page in pages for item in page["Items"]]

    def instances_by_id(self, account_id: str, instance_ids: Sequence[str]) -> list[InstanceRecord]:
        """Read these instances, in this order; those that are not there are left out."""
        found: dict[str, InstanceRecord] = {}
        wanted = list(dict.fromkeys(instance_ids))
        while wanted:
            keys = [_key(account_id, f"INSTANCE#{one}") for one in wanted[:_GET_ITEMS]]
            answer = self._client.batch_get_item(
                RequestItems={self._name: {"Keys": keys, "ConsistentRead": True}}
            )
            for record in map(_record, map(decode_item, answer["Responses"][self._name])):
                found[record.instance_id] = record
            left = answer["UnprocessedKeys"].get(self._name)
            again = [decode_item(key)["sk"] for key in left["Keys"]] if left else []
            wanted = [key.removeprefix("INSTANCE#") for key in again] + wanted[_GET_ITEMS:]
        return [found[one] for one in dict.fromkeys(instance_ids) if one in found]

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

    # --- the instances' lives --------------------------------------------------------------

    def change_state(self, before: InstanceRecord, after: InstanceRecord) -> bool:
        """Move an instance on to another state. Return False if it had moved on already."""
        changed = {
            "#state": after.state,
            "state_reason_code": after.state_reason_code,
            "state_reason_message": after.state_reason_message,
            "terminated_at_s": after.terminated_at_s,
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
                Key=_key(before.account_id, f"INSTANCE#{before.instance_id}"),
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

    # --- items -----------------------------------------------------------------------------

    def _put_reservation(
        self, reservation: Reservation, *, replace: bool = False
    ) -> TransactWriteItemTypeDef:
        return self._put(
            reservation.account_id,
            _reservation_sort_key(reservation.reservation_id),
            reservation,
            replace=replace,
            # Longer than its token: one that stood for nothing would never be decided.
            expires_at=int(reservation.launched_at_s) + LAUNCH_KEPT_S,
            live_key=UNDECIDED if reservation.state in {"placing", "unknown"} else None,
        )

    def _put(
        self,
        account_id: str,
        sort_key: str,
        content: msgspec.Struct,
        *,
        replace: bool = False,
        expires_at: int | None = None,
        live_key: str | None = None,
    ) -> TransactWriteItemTypeDef:
        item: dict[str, Any] = msgspec.to_builtins(content)
        item |= {"pk": account_partition(account_id), "sk": sort_key}
        if live_key is not None:
            item[LIVE_KEY] = live_key
        if expires_at is not None:
            item["expires_at"] = expires_at
        if replace:
            return {"Put": {"TableName": self._name, "Item": encode_item(item)}}
        return {
            "Put": {
                "TableName": self._name,
                "Item": encode_item(item),
                "ConditionExpression": "attribute_not_exists(pk)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def _delete(self, account_id: str, sort_key: str) -> TransactWriteItemTypeDef:
        return {"Delete": {"TableName": self._name, "Key": _key(account_id, sort_key)}}


def _key(account_id: str, sort_key: str) -> dict[str, Any]:
    return dict(encode_item({"pk": account_partition(account_id), "sk": sort_key}))


def _reservation_sort_key(reservation_id: str) -> str:
    return f"{RESERVATION_PREFIX}{reservation_id}"


def _record(item: dict[str, Any]) -> InstanceRecord:
    return msgspec.convert(item, InstanceRecord)


def _parts(
    writes: Sequence[TransactWriteItemTypeDef],
) -> list[Sequence[TransactWriteItemTypeDef]]:
    """Cut the writes of a launch's instances into transactions, at least one."""
    return [
        writes[start : start + _TRANSACTION_INSTANCES]
        for start in range(0, len(writes) or 1, _TRANSACTION_INSTANCES)
    ]
