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

from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

import msgspec

from fleetcast.errors import FleetcastError
from fleetcast.launch_history import (
    LAUNCH_KEPT_S,
    RESERVATION_PREFIX,
    PastLaunch,
    account_partition,
)
from fleetcast.launch_story import LaunchState, LaunchStory
from lambdas.attribute_values import decode_item, encode_item
from lambdas.live_index import LIVE_KEY, UNDECIDED, region_partition
from lambdas.records import TERMINATED_VISIBLE_S, InstanceRecord, NodeRecord
from lambdas.transactions import cancellation_reasons, may_pass, transact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef, TransactWriteItemTypeDef

# A transaction holds 100 items and 4 MB; an instance with the largest tags takes 77 KB.
_TRANSACTION_INSTANCES: Final = 48
_GET_ITEMS: Final = 100
TOKEN_KEPT_S: Final = 7 * 86_400
NODE_PREFIX: Final = "NODE#"
SEEN_WITHIN_S: Final = 600.0


class _Condition(TypedDict):
    """What a write depends on; if it fails, the error shows what stood there."""

    ConditionExpression: str
    ExpressionAttributeNames: NotRequired[dict[str, str]]
    ExpressionAttributeValues: NotRequired[dict[str, AttributeValueTypeDef]]
    ReturnValuesOnConditionCheckFailure: Literal["ALL_OLD"]


_IF_NEW: Final[_Condition] = {
    "ConditionExpression": "attribute_not_exists(pk)",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}
_WHILE_OPEN: Final[_Condition] = {
    "ConditionExpression": "#state IN (:placing, :unknown)",
    "ExpressionAttributeNames": {"#state": "state"},
    "ExpressionAttributeValues": {":placing": {"S": "placing"}, ":unknown": {"S": "unknown"}},
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}


class Reservation(PastLaunch, frozen=True, kw_only=True):
    """One launch.

    instance_ids: what was asked for; once it is placed, what remained of it. undecided_until_s:
    until when its function may be at work on a launch that isn't decided, epoch seconds. story:
    what happened, once its function knows.
    """

    account_id: str
    instance_ids: tuple[str, ...]
    state: LaunchState
    undecided_until_s: float
    min_count: int = 1
    client_token: str | None = None
    story: LaunchStory | None = None


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
    """Somebody else is writing at this moment what this launch writes."""


class LaunchDecided(FleetcastError):
    """The launch has been decided already, by somebody else. state: how."""

    def __init__(self, state: Literal["placed", "refused"]) -> None:
        self.state = state
        super().__init__(f"the launch is {state} already")


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

        now_s: epoch seconds; a token that has expired by then is free. Raises TokenTaken, or
        LaunchConflict when that can't be told yet: try again.

        Beyond 48 instances it takes several transactions. The token is in the first one, so two
        launches never share it; if a later one fails, the launch is refused. A function that dies
        between two leaves a launch that is resolved as any other.
        """
        account = reservation.account_id
        head = [self._put_reservation(reservation)]
        if token is not None:
            key = f"TOKEN#{token.client_token}"
            expires = int(now_s) + TOKEN_KEPT_S
            free = _if_new_or_expired(now_s)
            head.insert(0, self._put(account, key, token, expires_at=expires, condition=free))
        first, *others = _parts(
            [self._put(account, f"INSTANCE#{one.instance_id}", one) for one in records]
        )
        self._begin(reservation, [*head, *first])
        try:
            for part in others:
                self._begin(reservation, part)
        except Exception:
            # Nothing has been asked for yet.
            self.refuse_launch(msgspec.structs.replace(reservation, state="refused"))
            raise

    def _begin(self, reservation: Reservation, writes: Sequence[TransactWriteItemTypeDef]) -> None:
        try:
            transact(self._client, writes)
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

    def place_launch(self, reservation: Reservation, placed: Sequence[InstanceRecord]) -> None:
        """Decide a launch: write where its instances are, and drop those that found no place.

        reservation: as it is to be, with all instances that were asked for. Raises LaunchDecided,
        and LaunchConflict if somebody who decides it too has dropped one of the placed.
        """
        account = reservation.account_id
        ids = tuple(record.instance_id for record in placed)
        writes = [self._update_place(record) for record in placed]
        writes += [
            self._delete(account, f"INSTANCE#{one}")
            for one in reservation.instance_ids
            if one not in ids
        ]
        self._decide(msgspec.structs.replace(reservation, instance_ids=ids), writes)

    def refuse_launch(self, reservation: Reservation) -> None:
        """Decide a launch that started nothing: its token may be used again.

        reservation: as it is to be. It stays, as evidence that nobody may run its instances.
        Raises LaunchDecided.
        """
        account = reservation.account_id
        writes = [self._delete(account, f"INSTANCE#{one}") for one in reservation.instance_ids]
        if reservation.client_token is not None:
            writes.append(self._delete(account, f"TOKEN#{reservation.client_token}"))
        self._decide(reservation, writes)

    def leave_unknown(self, reservation: Reservation) -> None:
        """Write that a launch's own function does not know what it became.

        reservation: as it is to be. Raises LaunchDecided.
        """
        self._decide(reservation, [])

    def _decide(self, decided: Reservation, writes: Sequence[TransactWriteItemTypeDef]) -> None:
        """Write what decides a launch together with the last of its instances.

        Each transaction holds only while nobody else has decided it: a function that was stopped
        for long must not undo what was resolved meanwhile.
        """
        *others, last = _parts(writes)
        try:
            for part in others:
                transact(self._client, [self._check_open(decided), *part])
            transact(self._client, [*last, self._put_reservation(decided, _WHILE_OPEN)])
        except self._client.exceptions.TransactionCanceledException as error:
            reasons = cancellation_reasons(error)
            stored = [reason["Item"] for reason in reasons if "Item" in reason]
            if not stored:
                if any(reason.get("Code") == "ConditionalCheckFailed" for reason in reasons):
                    raise LaunchConflict from error
                raise
            current = msgspec.convert(decode_item(stored[0]), Reservation)
            if current == decided:
                return  # the client has repeated a transaction whose answer was lost
            match current.state:
                case "placed" | "refused":
                    raise LaunchDecided(current.state) from error
            raise

    def _check_open(self, reservation: Reservation) -> TransactWriteItemTypeDef:
        key = _key(reservation.account_id, _reservation_sort_key(reservation.reservation_id))
        return {"ConditionCheck": {"TableName": self._name, "Key": key, **_WHILE_OPEN}}

    def _update_place(self, record: InstanceRecord) -> TransactWriteItemTypeDef:
        """Write only what placing decides: the state may have moved on meanwhile."""
        changed = {
            "region": record.region,
            "zone": record.zone,
            "node": record.node,
            "attempt": record.attempt,
            LIVE_KEY: region_partition(record.region or ""),
        }
        return {
            "Update": {
                "TableName": self._name,
                "Key": _key(record.account_id, f"INSTANCE#{record.instance_id}"),
                "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in changed),
                # An update makes what isn't there: half a record, that nobody can read.
                "ConditionExpression": "attribute_exists(pk)",
                "ExpressionAttributeNames": {f"#{name}": name for name in changed},
                "ExpressionAttributeValues": encode_item(
                    {f":{name}": value for name, value in changed.items()}
                ),
            }
        }

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
        self, reservation: Reservation, condition: _Condition | None = None
    ) -> TransactWriteItemTypeDef:
        return self._put(
            reservation.account_id,
            _reservation_sort_key(reservation.reservation_id),
            reservation,
            condition=condition,
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
        condition: _Condition | None = None,
        expires_at: int | None = None,
        live_key: str | None = None,
    ) -> TransactWriteItemTypeDef:
        item: dict[str, Any] = msgspec.to_builtins(content)
        item |= {"pk": account_partition(account_id), "sk": sort_key}
        if live_key is not None:
            item[LIVE_KEY] = live_key
        if expires_at is not None:
            item["expires_at"] = expires_at
        return {
            "Put": {
                "TableName": self._name,
                "Item": encode_item(item),
                **(condition or _IF_NEW),
            }
        }

    def _delete(self, account_id: str, sort_key: str) -> TransactWriteItemTypeDef:
        return {"Delete": {"TableName": self._name, "Key": _key(account_id, sort_key)}}


def _key(account_id: str, sort_key: str) -> dict[str, Any]:
    return dict(encode_item({"pk": account_partition(account_id), "sk": sort_key}))


def _if_new_or_expired(now_s: float) -> _Condition:
    # DynamoDB drops what has expired when it comes to it, days later.
    return {
        "ConditionExpression": "attribute_not_exists(pk) OR expires_at <= :now",
        "ExpressionAttributeValues": dict(encode_item({":now": int(now_s)})),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


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
