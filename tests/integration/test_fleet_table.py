"""The Fleet table: a launch is written whole or not at all, and read as it was written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.stub import Stubber

from fleetcast.launch_history import LAUNCH_KEPT_S
from lambdas.attribute_values import encode_item
from lambdas.fleet_table import FleetTable
from lambdas.launch_table import (
    TOKEN_KEPT_S,
    LaunchConflict,
    LaunchDecided,
    Reservation,
    Token,
    TokenTaken,
)
from lambdas.live_index import LIVE_INDEX, UNDECIDED, region_partition
from lambdas.records import InstanceRecord
from tests.tables import FLEET, tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

    from fleetcast.launch_story import LaunchState
    from fleetcast.messages import InstanceState

ACCOUNT = "123456789012"
NOW_S = 1_700_000_000.5
LARGEST_TAGS = {f"{number:02}" + "😀" * 125: "😀" * 255 for number in range(50)}


@pytest.fixture
def dynamodb() -> Iterator[DynamoDBClient]:
    with tables(FLEET) as client:
        yield client


@pytest.fixture
def fleet(dynamodb: DynamoDBClient) -> FleetTable:
    return FleetTable(dynamodb, FLEET)


def instances_of(
    launch: int, count: int = 1, *, tags: dict[str, str] | None = None
) -> list[InstanceRecord]:
    return [
        InstanceRecord(
            account_id=ACCOUNT,
            reservation_id=f"r-{launch:017x}",
            instance_id=f"i-{launch:08x}{index:09x}",
            instance_type="t3.medium",
            image_id="ami-00000001",
            architecture="x86_64",
            launch_index=index,
            launched_at_s=NOW_S,
            tags=tags or {},
            client_token="token",  # noqa: S106 - a ClientToken is no secret
        )
        for index in range(count)
    ]


def reservation_of(records: Sequence[InstanceRecord]) -> Reservation:
    return Reservation(
        account_id=ACCOUNT,
        reservation_id=records[0].reservation_id,
        instance_type=records[0].instance_type,
        launched_at_s=records[0].launched_at_s,
        instance_ids=tuple(record.instance_id for record in records),
        state="placing",
        undecided_until_s=NOW_S + 25,
        client_token="token",  # noqa: S106 - a ClientToken is no secret
    )


def decided(
    records: Sequence[InstanceRecord], state: LaunchState, *, region: str | None = None
) -> Reservation:
    return msgspec.structs.replace(reservation_of(records), state=state, region=region)


def token_of(records: Sequence[InstanceRecord]) -> Token:
    return Token(
        client_token="token",  # noqa: S106 - a ClientToken is no secret
        fingerprint="f" * 64,
        reservation_id=records[0].reservation_id,
    )


def begin(fleet: FleetTable, records: Sequence[InstanceRecord], *, token: bool = True) -> None:
    fleet.launches.begin(
        reservation_of(records), records, token_of(records) if token else None, now_s=NOW_S
    )


def placed_on(node: str, record: InstanceRecord) -> InstanceRecord:
    return msgspec.structs.replace(record, region="us-east-1", zone="us-east-1a", node=node)


def stored(fleet: FleetTable) -> list[InstanceRecord]:
    return sorted(fleet.instances(ACCOUNT), key=lambda record: record.instance_id)


def everything(dynamodb: DynamoDBClient) -> list[str]:
    return sorted(item["sk"]["S"] for item in dynamodb.scan(TableName=FLEET)["Items"])


def expiries(dynamodb: DynamoDBClient) -> dict[str, int]:
    items = dynamodb.scan(TableName=FLEET)["Items"]
    return {item["sk"]["S"]: int(item["expires_at"]["N"]) for item in items if "expires_at" in item}


def events(dynamodb: DynamoDBClient) -> Any:  # noqa: ANN401 - typed as if no handler ever answered
    return dynamodb.meta.events


# --- beginning -----------------------------------------------------------------------------


def test_a_launch_that_has_begun_is_read_back_as_it_was_written(fleet: FleetTable) -> None:
    records = instances_of(1, 3, tags={"Name": "web"})
    begin(fleet, records)
    assert stored(fleet) == records
    assert fleet.launches.read(ACCOUNT, records[0].reservation_id) == reservation_of(records)


@pytest.mark.parametrize("count", [1, 48, 49, 97])
def test_a_launch_of_any_size_is_written_whole_and_refused_whole(
    fleet: FleetTable, dynamodb: DynamoDBClient, count: int
) -> None:
    records = instances_of(1, count)
    begin(fleet, records)
    assert stored(fleet) == records
    fleet.launches.refuse(decided(records, "refused"))
    assert everything(dynamodb) == [f"RESERVATION#{records[0].reservation_id}"]


def test_a_token_that_is_taken_is_answered_with_what_it_stands_for(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    first, second = instances_of(1), instances_of(2)
    begin(fleet, first)
    before = everything(dynamodb)
    with pytest.raises(TokenTaken) as taken:
        begin(fleet, second)
    assert taken.value.token == token_of(first)
    assert everything(dynamodb) == before


def test_the_same_token_in_two_accounts_stands_for_two_launches(fleet: FleetTable) -> None:
    begin(fleet, instances_of(1))
    others = [msgspec.structs.replace(one, account_id="999999999999") for one in instances_of(2)]
    reservation = msgspec.structs.replace(reservation_of(others), account_id="999999999999")
    fleet.launches.begin(reservation, others, token_of(others), now_s=NOW_S)
    assert fleet.instances("999999999999") == others


def test_a_token_that_has_expired_is_free_before_dynamodb_drops_it(fleet: FleetTable) -> None:
    first, second = instances_of(1), instances_of(2)
    begin(fleet, first)
    late_s = NOW_S + TOKEN_KEPT_S
    with pytest.raises(TokenTaken):
        fleet.launches.begin(reservation_of(second), second, token_of(second), now_s=late_s - 1)
    fleet.launches.begin(reservation_of(second), second, token_of(second), now_s=late_s)
    with pytest.raises(TokenTaken) as taken:
        begin(fleet, instances_of(3))
    assert taken.value.token == token_of(second)


@pytest.mark.parametrize("token", [True, False])
@pytest.mark.parametrize("lost", [1, 2])
def test_a_transaction_repeated_because_its_answer_was_lost_is_no_other_launch(
    fleet: FleetTable, dynamodb: DynamoDBClient, *, token: bool, lost: int
) -> None:
    answers = iter(range(1, 10))

    def lose_answer(**_: object) -> float | None:
        return 0.0 if next(answers) == lost else None  # seconds until the client tries again

    events(dynamodb).register("needs-retry.dynamodb.TransactWriteItems", lose_answer)
    records = instances_of(1, 60)
    begin(fleet, records, token=token)
    assert stored(fleet) == records


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError"])
def test_a_launch_that_met_another_write_may_be_tried_again(
    fleet: FleetTable, dynamodb: DynamoDBClient, code: str
) -> None:
    with Stubber(dynamodb) as stubber:
        for _ in range(5):
            cancel(stubber, code, "None", "None")
        with pytest.raises(LaunchConflict):
            begin(fleet, instances_of(1))


@pytest.mark.parametrize("throttled", [1, 2])
def test_a_launch_of_which_a_part_is_throttled_is_begun_all_the_same(
    fleet: FleetTable, dynamodb: DynamoDBClient, throttled: int
) -> None:
    with Stubber(dynamodb) as stubber:
        for part in (1, 2):
            if part == throttled:
                cancel(stubber, "None", "ThrottlingError")
            stubber.add_response("transact_write_items", {})
        begin(fleet, instances_of(1, 60))
        stubber.assert_no_pending_responses()


def test_a_launch_that_dynamodb_refuses_is_no_conflict(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    with Stubber(dynamodb) as stubber:
        cancel(stubber, "ValidationError", "TransactionConflict", "None")
        with pytest.raises(ClientError):
            begin(fleet, instances_of(1))


def test_a_launch_whose_later_transaction_fails_leaves_only_that_it_was_refused(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    calls = iter(range(1, 100))

    def cut_off(**_: object) -> None:
        if next(calls) == 3:
            raise EndpointConnectionError(endpoint_url="http://dynamodb")

    events(dynamodb).register("before-call.dynamodb.TransactWriteItems", cut_off)
    with pytest.raises(EndpointConnectionError):
        begin(fleet, instances_of(1, 100))
    assert everything(dynamodb) == [f"RESERVATION#{instances_of(1)[0].reservation_id}"]
    reservation = fleet.launches.read(ACCOUNT, instances_of(1)[0].reservation_id)
    assert reservation
    assert reservation.state == "refused"


def test_a_transaction_stays_below_dynamodbs_limits_whatever_the_tags(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    transactions: list[list[Any]] = []

    def note(params: dict[str, Any], **_: object) -> None:
        transactions.append(json.loads(params["body"])["TransactItems"])

    events(dynamodb).register("before-call.dynamodb.TransactWriteItems", note)
    begin(fleet, instances_of(1, 60, tags=LARGEST_TAGS))
    assert all(len(items) <= 100 for items in transactions)
    sizes = [len(json.dumps(items, ensure_ascii=False).encode()) for items in transactions]
    assert max(sizes) <= 4_000_000


# --- finishing -----------------------------------------------------------------------------


def test_a_placed_launch_has_its_places_and_nothing_that_found_none(fleet: FleetTable) -> None:
    records = instances_of(1, 60)
    begin(fleet, records)
    placed = [placed_on("n1", record) for record in records[:55]]
    fleet.launches.place(decided(records, "placed", region="us-east-1"), placed)
    assert stored(fleet) == placed
    assert fleet.launches.read(ACCOUNT, records[0].reservation_id) == decided(
        placed, "placed", region="us-east-1"
    )


def test_a_launch_of_which_nothing_is_known_keeps_all_its_records(fleet: FleetTable) -> None:
    records = instances_of(1, 3)
    begin(fleet, records)
    fleet.launches.leave_unknown(decided(records, "unknown"))
    assert stored(fleet) == records
    assert fleet.launches.read(ACCOUNT, records[0].reservation_id) == decided(records, "unknown")


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("first", ["placed", "refused"])
def test_a_launch_is_decided_once(fleet: FleetTable, first: str, count: int) -> None:
    records = instances_of(1, count)
    begin(fleet, records)
    placed = [placed_on("n1", record) for record in records]
    if first == "placed":
        fleet.launches.place(decided(records, "placed"), placed)
    else:
        fleet.launches.refuse(decided(records, "refused"))
    before = stored(fleet)
    late = [placed_on("n2", record) for record in records[:1]]
    with pytest.raises(LaunchDecided) as other:
        fleet.launches.place(decided(records, "placed", region="eu-west-1"), late)
    assert other.value.state == first
    if first == "placed":
        with pytest.raises(LaunchDecided):
            fleet.launches.refuse(decided(records, "refused"))
    with pytest.raises(LaunchDecided):
        fleet.launches.leave_unknown(decided(records, "unknown"))
    assert stored(fleet) == before


def test_two_who_decide_at_once_leave_no_instance_half_recorded(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    records = instances_of(1, 60)
    begin(fleet, records)
    found_by_one = [placed_on("n1", record) for record in records[50:]]
    found_by_other = [placed_on("n1", record) for record in records]
    others = iter([True])

    def other_decides(**_: object) -> None:
        if next(others, False):
            with pytest.raises(LaunchConflict):
                fleet.launches.place(decided(records, "placed"), found_by_other)

    # The first has dropped by now some that the other one has found.
    events(dynamodb).register("after-call.dynamodb.TransactWriteItems", other_decides)
    fleet.launches.place(decided(records, "placed"), found_by_one)
    assert stored(fleet) == found_by_one


@pytest.mark.parametrize("count", [1, 60])
def test_a_decision_that_is_written_twice_is_one(fleet: FleetTable, count: int) -> None:
    records = instances_of(1, count)
    begin(fleet, records)
    placed = [placed_on("n1", record) for record in records]
    for _ in range(2):  # as a client does that has lost the first answer
        fleet.launches.place(decided(records, "placed"), placed)
    assert stored(fleet) == placed


def test_a_launch_is_kept_until_it_is_decided_and_for_two_weeks_at_least(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    (record,) = instances_of(1)
    reservation = reservation_of([record])
    key = f"RESERVATION#{record.reservation_id}"
    two_weeks_on = int(NOW_S) + LAUNCH_KEPT_S

    begin(fleet, [record])
    begun = expiries(dynamodb)
    placed = msgspec.structs.replace(reservation, state="placed", region="us-east-1")
    fleet.launches.place(placed, [placed_on("n1", record)])

    assert key not in begun, "its instances' records would stand there for ever"
    assert expiries(dynamodb)[key] == two_weeks_on
    assert begun["TOKEN#token"] < two_weeks_on
    assert fleet.launches.read(ACCOUNT, record.reservation_id) == placed


def test_finishing_does_not_undo_a_termination_that_came_while_placing(fleet: FleetTable) -> None:
    (record,) = instances_of(1)
    begin(fleet, [record])
    gone = msgspec.structs.replace(record, state="shutting-down")
    assert fleet.change_state(record, gone)
    fleet.launches.place(decided([record], "placed"), [placed_on("n1", record)])
    assert stored(fleet) == [placed_on("n1", gone)]


def test_the_end_of_a_launch_is_written_again_when_it_met_another_write(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    (record,) = instances_of(1)
    with Stubber(dynamodb) as stubber:
        cancel(stubber, "TransactionConflict", "None")
        stubber.add_response("transact_write_items", {})
        fleet.launches.place(decided([record], "placed"), [placed_on("n1", record)])
        stubber.assert_no_pending_responses()


def test_writing_the_end_of_a_launch_is_tried_five_times(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    with Stubber(dynamodb) as stubber:
        for _ in range(5):
            cancel(stubber, "TransactionConflict", "None")
        with pytest.raises(ClientError):
            fleet.launches.refuse(decided(instances_of(1), "refused"))
        stubber.assert_no_pending_responses()


def test_a_refused_launch_frees_its_token(fleet: FleetTable) -> None:
    first, second = instances_of(1), instances_of(2)
    begin(fleet, first)
    fleet.launches.refuse(decided(first, "refused"))
    begin(fleet, second)
    assert stored(fleet) == second


@pytest.mark.parametrize("count", [46, 48, 49, 96])
def test_a_token_never_outlives_the_launch_it_stands_for(
    fleet: FleetTable, dynamodb: DynamoDBClient, count: int
) -> None:
    """Otherwise a function that dies between two transactions blocks the token for a week."""
    records = instances_of(1, count)
    begin(fleet, records)

    def consistent(**_: object) -> None:
        keys = everything(dynamodb)
        token_is_there = "TOKEN#token" in keys
        reservation = fleet.launches.read(ACCOUNT, records[0].reservation_id)
        assert reservation
        assert token_is_there == (reservation.state == "placing")

    events(dynamodb).register("after-call.dynamodb.TransactWriteItems", consistent)
    fleet.launches.refuse(decided(records, "refused"))
    assert "TOKEN#token" not in everything(dynamodb)


# --- reading -------------------------------------------------------------------------------


def test_an_account_larger_than_a_page_is_read_whole(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    pages: list[bool] = []

    def note(model: object, params: dict[str, Any], **_: object) -> None:
        del model
        pages.append(json.loads(params["body"])["ConsistentRead"])

    events(dynamodb).register("before-call.dynamodb.Query", note)
    records = instances_of(1, 30, tags=LARGEST_TAGS)
    begin(fleet, records)
    assert stored(fleet) == records
    assert len(pages) > 1
    assert all(pages), "what RunInstances has returned must be there (invariant I10)"


def test_instances_are_read_by_id_in_the_order_asked_for(fleet: FleetTable) -> None:
    records = instances_of(1, 101)
    begin(fleet, records)
    wanted = [record.instance_id for record in reversed(records)]
    asked = [wanted[0], "i-0badbadbadbadbad0", *wanted]
    found = fleet.instances_by_id(ACCOUNT, asked)
    assert [record.instance_id for record in found] == wanted


def test_what_dynamodb_did_not_get_to_is_asked_for_again(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    first, second = instances_of(1, 2)
    key = encode_item({"pk": f"ACCOUNT#{ACCOUNT}", "sk": f"INSTANCE#{second.instance_id}"})
    with Stubber(dynamodb) as stubber:
        stubber.add_response(
            "batch_get_item",
            {
                "Responses": {FLEET: [encode_item(msgspec.to_builtins(first))]},
                "UnprocessedKeys": {FLEET: {"Keys": [key]}},
            },
        )
        stubber.add_response(
            "batch_get_item",
            {
                "Responses": {FLEET: [encode_item(msgspec.to_builtins(second))]},
                "UnprocessedKeys": {},
            },
            {"RequestItems": {FLEET: {"Keys": [key], "ConsistentRead": True}}},
        )
        ids = [first.instance_id, second.instance_id]
        assert fleet.instances_by_id(ACCOUNT, ids) == [first, second]


# --- the index of what lives ---------------------------------------------------------------


def indexed(dynamodb: DynamoDBClient, live_key: str) -> list[str]:
    answer = dynamodb.query(
        TableName=FLEET,
        IndexName=LIVE_INDEX,
        KeyConditionExpression="live_pk = :live",
        ExpressionAttributeValues={":live": {"S": live_key}},
    )
    return [item["sk"]["S"] for item in answer["Items"]]


def test_a_launch_is_in_the_index_until_it_is_decided(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    (record,) = instances_of(1)
    reservation = reservation_of([record])
    begin(fleet, [record])
    assert indexed(dynamodb, UNDECIDED) == [f"RESERVATION#{record.reservation_id}"]
    unknown = msgspec.structs.replace(reservation, state="unknown")
    fleet.launches.leave_unknown(unknown)
    assert indexed(dynamodb, UNDECIDED) == [f"RESERVATION#{record.reservation_id}"]
    placed = msgspec.structs.replace(reservation, state="placed")
    fleet.launches.place(placed, [placed_on("n1", record)])
    assert indexed(dynamodb, UNDECIDED) == []


def test_an_instance_is_in_the_index_from_its_placement_to_its_end(
    fleet: FleetTable, dynamodb: DynamoDBClient
) -> None:
    (record,) = instances_of(1)
    begin(fleet, [record])
    assert indexed(dynamodb, region_partition("us-east-1")) == []
    placed = placed_on("n1", record)
    fleet.launches.place(decided([record], "placed"), [placed])
    leaving = move(placed, "shutting-down")
    assert fleet.change_state(placed, leaving)
    assert indexed(dynamodb, region_partition("us-east-1")) == [f"INSTANCE#{record.instance_id}"]
    assert fleet.change_state(leaving, move(leaving, "terminated"))
    assert indexed(dynamodb, region_partition("us-east-1")) == []


# --- an instance's life --------------------------------------------------------------------


def move(record: InstanceRecord, state: InstanceState) -> InstanceRecord:
    ended = NOW_S if state == "terminated" else None
    return msgspec.structs.replace(record, state=state, terminated_at_s=ended)


def test_only_a_terminated_instance_expires_and_an_hour_after_its_end(
    dynamodb: DynamoDBClient, fleet: FleetTable
) -> None:
    first, second = instances_of(1, 2)
    begin(fleet, [first, second], token=False)
    gone = move(first, "terminated")
    assert fleet.change_state(first, gone)
    assert fleet.change_state(second, move(second, "shutting-down"))
    assert fleet.instances_by_id(ACCOUNT, [gone.instance_id]) == [gone]
    assert expiries(dynamodb) == {f"INSTANCE#{gone.instance_id}": int(NOW_S) + 3_600}


def test_why_and_when_an_instance_was_shut_down_is_kept(fleet: FleetTable) -> None:
    (record,) = instances_of(1)
    begin(fleet, [record])
    stopping = msgspec.structs.replace(
        move(record, "stopping"),
        state_reason_code="Client.UserInitiatedShutdown",
        state_reason_message="Client.UserInitiatedShutdown: User initiated shutdown",
        shutdown_asked_at_s=NOW_S,
    )
    assert fleet.change_state(record, stopping)
    assert stored(fleet) == [stopping]


def test_an_instance_that_has_moved_on_is_not_moved_back(fleet: FleetTable) -> None:
    (record,) = instances_of(1)
    begin(fleet, [record])
    gone = move(record, "shutting-down")
    assert fleet.change_state(record, gone)
    assert not fleet.change_state(record, move(record, "running"))
    assert stored(fleet) == [gone]


def test_news_of_an_older_attempt_changes_nothing(fleet: FleetTable) -> None:
    (record,) = instances_of(1)
    begin(fleet, [record])
    newer = msgspec.structs.replace(placed_on("n2", record), attempt=2)
    fleet.launches.place(decided([record], "placed"), [newer])
    assert not fleet.change_state(record, move(record, "terminated"))
    assert stored(fleet) == [newer]


def test_a_state_of_an_instance_that_is_not_there_makes_no_record(fleet: FleetTable) -> None:
    (record,) = instances_of(1)
    assert not fleet.change_state(record, move(record, "running"))
    assert stored(fleet) == []


def cancel(stubber: Stubber, *codes: str) -> None:
    """Answer the next transaction with why each of its items was refused."""
    stubber.add_client_error(
        "transact_write_items",
        "TransactionCanceledException",
        modeled_fields={"CancellationReasons": [{"Code": code} for code in codes]},
    )
