"""The launches in the Fleet table: written whole before anything is asked for, and decided once.

Owns the reservations, the ClientTokens, and the making and dropping of the instances' records.
Launching imports this module: it works on a plain botocore client, and must import neither
boto3 nor Powertools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

import msgspec

from fleetcast.errors import FleetcastError
from fleetcast.launch_history import LAUNCH_KEPT_S, PastLaunch
from fleetcast.launch_story import LaunchState, LaunchStory
from lambdas.attribute_values import decode_item, encode_item
from lambdas.fleet_keys import instance_key, reservation_key, token_key
from lambdas.live_index import LIVE_KEY, UNDECIDED, region_partition
from lambdas.transactions import cancellation_reasons, may_pass, transact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef, TransactWriteItemTypeDef

    from lambdas.fleet_keys import Key
    from lambdas.records import InstanceRecord

# A transaction holds 100 items and 4 MB; an instance with the largest tags takes 77 KB.
_TRANSACTION_INSTANCES: Final = 48
TOKEN_KEPT_S: Final = 7 * 86_400


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


class LaunchTable:
    """The launches, over a DynamoDB client, boto3's or botocore's. All methods raise botocore's."""

    def __init__(self, client: DynamoDBClient, name: str) -> None:
        self._client = client
        self._name = name

    def read(self, account_id: str, reservation_id: str) -> Reservation | None:
        """Read a launch, or None if there is none, or none any more."""
        answer = self._client.get_item(
            TableName=self._name,
            Key=reservation_key(account_id, reservation_id),
            ConsistentRead=True,
        )
        item = answer.get("Item")
        return msgspec.convert(decode_item(item), Reservation) if item else None

    def begin(
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
            key = token_key(account, token.client_token)
            expires = int(now_s) + TOKEN_KEPT_S
            free = _if_new_or_expired(now_s)
            head.insert(0, self._put(key, token, expires_at=expires, condition=free))
        first, *others = _parts(
            [self._put(instance_key(account, one.instance_id), one) for one in records]
        )
        self._begin(reservation, [*head, *first])
        try:
            for part in others:
                self._begin(reservation, part)
        except Exception:
            # Nothing has been asked for yet.
            self.refuse(msgspec.structs.replace(reservation, state="refused"))
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

    def place(self, reservation: Reservation, placed: Sequence[InstanceRecord]) -> None:
        """Decide a launch: write where its instances are, and drop those that found no place.

        reservation: as it is to be, with all instances that were asked for. Raises LaunchDecided,
        and LaunchConflict if somebody who decides it too has dropped one of the placed.
        """
        account = reservation.account_id
        ids = tuple(record.instance_id for record in placed)
        writes = [self._update_place(record) for record in placed]
        writes += [
            self._delete(instance_key(account, one))
            for one in reservation.instance_ids
            if one not in ids
        ]
        self._decide(msgspec.structs.replace(reservation, instance_ids=ids), writes)

    def refuse(self, reservation: Reservation) -> None:
        """Decide a launch that started nothing: its token may be used again.

        reservation: as it is to be. It stays, as evidence that nobody may run its instances.
        Raises LaunchDecided.
        """
        account = reservation.account_id
        writes = [self._delete(instance_key(account, one)) for one in reservation.instance_ids]
        if reservation.client_token is not None:
            writes.append(self._delete(token_key(account, reservation.client_token)))
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
        key = reservation_key(reservation.account_id, reservation.reservation_id)
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
                "Key": instance_key(record.account_id, record.instance_id),
                "UpdateExpression": "SET " + ", ".join(f"#{name} = :{name}" for name in changed),
                # An update makes what isn't there: half a record, that nobody can read.
                "ConditionExpression": "attribute_exists(pk)",
                "ExpressionAttributeNames": {f"#{name}": name for name in changed},
                "ExpressionAttributeValues": encode_item(
                    {f":{name}": value for name, value in changed.items()}
                ),
            }
        }

    def _put_reservation(
        self, reservation: Reservation, condition: _Condition | None = None
    ) -> TransactWriteItemTypeDef:
        is_open = reservation.state in {"placing", "unknown"}
        return self._put(
            reservation_key(reservation.account_id, reservation.reservation_id),
            reservation,
            condition=condition,
            # Before it is decided, nothing else says what its instances' records are worth.
            expires_at=None if is_open else int(reservation.launched_at_s) + LAUNCH_KEPT_S,
            live_key=UNDECIDED if is_open else None,
        )

    def _put(
        self,
        key: Key,
        content: msgspec.Struct,
        *,
        condition: _Condition | None = None,
        expires_at: int | None = None,
        live_key: str | None = None,
    ) -> TransactWriteItemTypeDef:
        item: dict[str, Any] = msgspec.to_builtins(content)
        if live_key is not None:
            item[LIVE_KEY] = live_key
        if expires_at is not None:
            item["expires_at"] = expires_at
        return {
            "Put": {
                "TableName": self._name,
                "Item": encode_item(item) | key,
                **(condition or _IF_NEW),
            }
        }

    def _delete(self, key: Key) -> TransactWriteItemTypeDef:
        return {"Delete": {"TableName": self._name, "Key": key}}


def _if_new_or_expired(now_s: float) -> _Condition:
    # DynamoDB drops what has expired when it comes to it, days later.
    return {
        "ConditionExpression": "attribute_not_exists(pk) OR expires_at <= :now",
        "ExpressionAttributeValues": dict(encode_item({":now": int(now_s)})),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _parts(
    writes: Sequence[TransactWriteItemTypeDef],
) -> list[Sequence[TransactWriteItemTypeDef]]:
    """Cut the writes of a launch's instances into transactions, at least one."""
    return [
        writes[start : start + _TRANSACTION_INSTANCES]
        for start in range(0, len(writes) or 1, _TRANSACTION_INSTANCES)
    ]
