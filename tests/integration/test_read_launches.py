"""What the read API tells of a launch, on tables in moto."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetcast.launch_story import Ask, LaunchStory, RegionVerdict
from fleetcast.read_answers import LaunchAnswer, LaunchedInstance
from fleetcast.selection import RankedRegion
from lambdas.launch_table import Reservation, Token
from lambdas.records import InstanceRecord
from tests.read_api import ACCOUNT, NOW_S, ReadApi, call, read_api

if TYPE_CHECKING:
    from collections.abc import Iterator

RESERVATION_ID = "r-0123456789abcdef0"
IDS = ("i-00000000000000001", "i-00000000000000002")
TOKEN = Token(
    client_token="the-client-token",  # noqa: S106 - a ClientToken is no secret
    fingerprint="f" * 64,
    reservation_id=RESERVATION_ID,
)
RESERVATION = Reservation(
    account_id=ACCOUNT,
    reservation_id=RESERVATION_ID,
    instance_type="t3.medium",
    launched_at_s=NOW_S - 3,
    instance_ids=IDS,
    state="placing",
    undecided_until_s=NOW_S + 20,
    client_token=TOKEN.client_token,
    pinned=True,
)
STORY = LaunchStory(
    ranked=(RankedRegion(region="us-east-1", freshness="fresh", score=82.0, age_s=60.5),),
    asked_last=("us-east-1",),
    verdicts=(RegionVerdict(region="us-east-1", end="placed"),),
    asks=(
        Ask(
            region="us-east-1",
            subject="ec2.RunInstances.us-east-1.t3.medium",
            outcome="accepted",
            attempt=1,
            count=2,
            began_ms=3,
            took_ms=1.5,
            node="n1",
            detail="takes 2",
        ),
    ),
    took_ms=12.0,
)


def record(instance_id: str, **fields: Any) -> InstanceRecord:  # noqa: ANN401 - of a struct
    return InstanceRecord(
        account_id=ACCOUNT,
        reservation_id=RESERVATION_ID,
        instance_id=instance_id,
        instance_type="t3.medium",
        image_id="ami-00000001",
        architecture="x86_64",
        launch_index=IDS.index(instance_id),
        launched_at_s=NOW_S - 3,
        tags={"secret-tag": "secret-value"},
        **fields,
    )


RECORDS = [record(one) for one in IDS]
PLACED = [record(one, region="us-east-1", zone="us-east-1a", node="n1") for one in IDS]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadApi]:
    with read_api(monkeypatch) as api:
        api.fleet.launches.begin(RESERVATION, RECORDS, TOKEN, now_s=NOW_S)
        yield api


def launch() -> LaunchAnswer:
    response = call(f"/v1/launches/{RESERVATION_ID}")
    assert response["statusCode"] == 200, response
    return msgspec.json.decode(response["body"], type=LaunchAnswer)


@pytest.mark.usefixtures("api")
def test_a_launch_that_is_being_placed_has_no_story_yet() -> None:
    answer = launch()

    assert (answer.state, answer.story, answer.region) == ("placing", None, None)
    assert answer.undecided_until_s == NOW_S + 20
    assert [one.instance_id for one in answer.instances] == list(IDS)
    assert (answer.instance_type, answer.min_count, answer.pinned) == ("t3.medium", 1, True)
    assert (answer.launched_at_s, answer.answered_at_s) == (NOW_S - 3, NOW_S)


def test_a_placed_launch_is_told_with_its_story_and_where_each_instance_is(api: ReadApi) -> None:
    placed = msgspec.structs.replace(RESERVATION, state="placed", region="us-east-1", story=STORY)
    api.fleet.launches.place(placed, PLACED)

    answer = launch()

    assert (answer.state, answer.region, answer.story) == ("placed", "us-east-1", STORY)
    assert answer.undecided_until_s is None
    assert answer.instances == tuple(
        LaunchedInstance(
            instance_id=one, state="pending", region="us-east-1", zone="us-east-1a", node="n1"
        )
        for one in IDS
    )


def test_instances_whose_records_have_gone_are_named_still(api: ReadApi) -> None:
    placed = msgspec.structs.replace(RESERVATION, state="placed", region="us-east-1", story=STORY)
    api.fleet.launches.place(placed, PLACED)
    key: Any = {"pk": {"S": f"ACCOUNT#{ACCOUNT}"}, "sk": {"S": f"INSTANCE#{IDS[0]}"}}
    api.dynamodb.delete_item(TableName="Fleet", Key=key)

    first, second = launch().instances

    assert first == LaunchedInstance(instance_id=IDS[0])
    assert (second.instance_id, second.state) == (IDS[1], "pending")


def test_a_refused_launch_is_told_with_the_error_and_has_no_instances(api: ReadApi) -> None:
    story = LaunchStory(
        verdicts=(RegionVerdict(region="us-east-1", end="no_room", why="no node has room"),),
        error_code="InsufficientInstanceCapacity",
        error_message="There is no room for 1 x t3.medium now: us-east-1: no node has room.",
    )
    api.fleet.launches.refuse(msgspec.structs.replace(RESERVATION, state="refused", story=story))

    answer = launch()

    assert (answer.state, answer.story, answer.instances) == ("refused", story, ())


def test_neither_tokens_nor_tags_are_told(api: ReadApi) -> None:
    placed = msgspec.structs.replace(RESERVATION, state="placed", region="us-east-1", story=STORY)
    api.fleet.launches.place(placed, PLACED)

    body = call(f"/v1/launches/{RESERVATION_ID}")["body"]

    assert TOKEN.client_token not in body
    assert TOKEN.fingerprint not in body
    assert "secret" not in body


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/v1/launches/r-00000000000000000", "InvalidReservationID.NotFound"),
        ("/v1/launches/r-0123", "InvalidReservationID.Malformed"),
        ("/v1/launches/i-0123456789abcdef0", "InvalidReservationID.Malformed"),
        ("/v1/launches/r-0123456789abcdef0%0A", "InvalidReservationID.Malformed"),
        ("/v1/launches/r-0123456789ABCDEF0", "InvalidReservationID.Malformed"),
        (f"/v1/launches/{RESERVATION_ID}?instance-type=t3.medium", "UnknownParameter"),
    ],
)
def test_what_is_no_launch_is_refused(target: str, code: str) -> None:
    response = call(target)

    assert response["statusCode"] == 400
    assert msgspec.json.decode(response["body"])["error"]["code"] == code


@pytest.mark.usefixtures("api")
def test_another_accounts_launch_is_not_found() -> None:
    response = call(f"/v1/launches/{RESERVATION_ID}", account="210987654321")

    assert response["statusCode"] == 400
    assert "InvalidReservationID.NotFound" in response["body"]


def test_a_table_that_cannot_be_read_is_worth_a_retry(api: ReadApi) -> None:
    api.dynamodb.delete_table(TableName="Fleet")

    response = call(f"/v1/launches/{RESERVATION_ID}")

    assert response["statusCode"] == 503
    assert "ServiceUnavailable" in response["body"]
