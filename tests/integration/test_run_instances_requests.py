"""What the EC2 function makes of what it is sent, before it touches a region or a table."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.ec2_model import MODEL_PATH
from lambdas.fleet_table import FleetTable
from lambdas.launch_table import Reservation
from lambdas.records import InstanceRecord
from lambdas.run_instances import handler
from tests.captured_logs import captured_logs
from tests.ec2_endpoint import ACCOUNT, OWNER, Context, call, event, get_event
from tests.small_fleet import TYPE, SmallFleet, small_fleet
from tests.tables import FLEET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAUNCH = {
    "Action": "RunInstances",
    "Version": "2016-11-15",
    "ImageId": "ami-00000001",
    "InstanceType": TYPE,
    "MinCount": "1",
    "MaxCount": "1",
}


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    """A function that can reach neither its region nor its table: both would be told apart."""
    with small_fleet(tmp_path, monkeypatch) as fleet:
        fleet.start_function("us-east-1")
        fleet.dynamodb.delete_table(TableName=FLEET)
        yield fleet


def body(**changes: str | None) -> str:
    """Return the form of a launch with some fields changed, added, or (None) taken out."""
    fields = {**LAUNCH, **changes}
    return urlencode({name: value for name, value in fields.items() if value is not None})


def code_of(answer: dict[str, Any]) -> str | None:
    """Return the error code of an answer, or None if it is no error."""
    return ET.fromstring(answer["body"]).findtext("Errors/Error/Code")  # noqa: S314 - our own


def message_of(answer: dict[str, Any]) -> str:
    return ET.fromstring(answer["body"]).findtext("Errors/Error/Message") or ""  # noqa: S314 - our own


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (body(InstanceType="t3.enormous"), "InvalidParameterValue"),
        (body(InstanceType="t3.>"), "InvalidParameterValue"),
        (body(InstanceType=None), "MissingParameter"),
        (body(ImageId=None), "MissingParameter"),
        (body(MinCount=None), "MissingParameter"),
        (body(MaxCount=None), "MissingParameter"),
        (body(MinCount="-1", MaxCount="-1"), "InvalidParameterValue"),
        (body(MinCount="0"), "InvalidParameterValue"),
        (body(MinCount="1.5"), "InvalidParameterValue"),
        (body(MinCount=""), "InvalidParameterValue"),
        (body(MaxCount="1000000000"), "InvalidParameterValue"),
        (body(MinCount="2"), "InvalidParameterValue"),
        (body(UserData="not base64!"), "InvalidParameterValue"),
        (body(ClientToken="x" * 65), "InvalidParameterValue"),
        (body(Surprise="1"), "UnknownParameter"),
        (body(Action=None), "MissingAction"),
        (body(Action="LaunchRockets"), "InvalidAction"),
        ("Action=TerminateInstances", "MissingParameter"),
        ("Action=TerminateInstances&InstanceId.1=web", "InvalidInstanceID.Malformed"),
        (f"Action=TerminateInstances&InstanceId.1={'i' * 3000}", "InvalidInstanceID.Malformed"),
        ('{"Action": "RunInstances"}', "MalformedQueryString"),
        ("\x00\xff&&&=", "MalformedQueryString"),
        (body() + "&ImageId=ami-00000002", "MalformedQueryString"),
    ],
)
def test_a_request_that_cannot_be_served_touches_neither_a_region_nor_the_table(
    nothing: SmallFleet, form: str, code: str
) -> None:
    del nothing
    answer = call(event(form))
    assert code_of(answer) == code
    assert 400 <= answer["statusCode"] < 500


def test_user_data_that_is_not_base64_is_refused_in_ec2s_words(nothing: SmallFleet) -> None:
    del nothing
    answer = call(event(body(UserData="not base64!")))
    assert message_of(answer) == "Invalid BASE64 encoding of user data"


@pytest.mark.parametrize("sent", [None, ""])
@pytest.mark.parametrize("encoded", [True, False])
def test_a_request_without_a_body_is_a_client_error(
    nothing: SmallFleet, sent: str | None, *, encoded: bool
) -> None:
    del nothing
    answer = call(event(sent, encoded=encoded))
    assert code_of(answer) in {"MissingAction", "MalformedQueryString"}
    assert answer["statusCode"] == 400


@pytest.mark.parametrize("garbage", ["!", "A", base64.b64encode(b"\xff\xfe").decode()])
def test_a_body_that_only_claims_to_be_base64_is_a_client_error(
    nothing: SmallFleet, garbage: str
) -> None:
    del nothing
    answer = call({**event(garbage), "isBase64Encoded": True})
    assert code_of(answer) == "MalformedQueryString"


@given(st.text(max_size=200))
def test_whatever_the_body_the_answer_is_ec2s_and_the_clients_fault(sent: str) -> None:
    answer = call(event(sent))
    assert answer["headers"]["Content-Type"].startswith("text/xml")
    assert code_of(answer)
    assert answer["statusCode"] == 400


def test_a_body_may_be_base64_and_a_get_has_its_fields_in_the_query(nothing: SmallFleet) -> None:
    del nothing
    fields = {"Action": "DescribeInstances", "DryRun": "true", "Filter.1.Name": "image-id"}
    dry = urlencode(fields | {"Filter.1.Value.1": base64.b64encode(b"a+b/c&d=e").decode()})
    for received in (event(dry), event(dry, encoded=True), get_event(dry)):
        assert code_of(call(received)) == "DryRunOperation"


def test_a_get_without_a_query_is_a_client_error(nothing: SmallFleet) -> None:
    del nothing
    assert call(get_event(""))["statusCode"] == 400


def test_a_field_that_a_get_repeats_is_refused_and_not_chosen_from(nothing: SmallFleet) -> None:
    del nothing
    answer = call(get_event(body() + "&ImageId=ami-00000002"))
    assert code_of(answer) == "MalformedQueryString"


def test_a_failure_of_ours_is_answered_in_ec2s_form_and_without_its_inside(
    nothing: SmallFleet,
) -> None:
    del nothing
    with captured_logs("lambdas") as logs:
        answer = call(event(body()))
    assert (code_of(answer), answer["statusCode"]) == ("InternalError", 500)
    assert "ResourceNotFound" not in answer["body"]
    assert "ResourceNotFound" in logs.text()
    assert Context().aws_request_id in answer["body"]


def test_an_action_that_hangs_is_answered_before_the_function_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object) -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setitem(handler.ACTIONS, "DescribeInstances", hangs)
    with small_fleet(tmp_path, monkeypatch) as fleet, captured_logs("lambdas") as logs:
        fleet.start_function("us-east-1")
        began_s = time.monotonic()
        answer = call(event("Action=DescribeInstances"), Context(remaining_ms=1_100))
        assert time.monotonic() - began_s < 1.1
    assert (code_of(answer), answer["statusCode"]) == ("ServiceUnavailable", 503)
    assert logs.fields("refused")[0]["why"]


@pytest.mark.parametrize(
    ("identity", "account"),
    [({"accountId": ACCOUNT}, ACCOUNT), ({"accountId": None}, OWNER), ({}, OWNER), (None, OWNER)],
)
def test_the_account_is_the_callers_and_the_apis_owners_if_nobody_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: object, account: str
) -> None:
    record = InstanceRecord(
        account_id=account,
        reservation_id="r-00000001",
        instance_id="i-00000001",
        instance_type=TYPE,
        image_id="ami-00000001",
        architecture="x86_64",
        launch_index=0,
        launched_at_s=1_700_000_000,
    )
    reservation = Reservation(
        account_id=account,
        reservation_id="r-00000001",
        instance_type=TYPE,
        launched_at_s=1_700_000_000,
        instance_ids=("i-00000001",),
        state="placed",
        undecided_until_s=0,
    )
    received = event("Action=DescribeInstances")
    received["requestContext"]["identity"] = identity
    with small_fleet(tmp_path, monkeypatch) as fleet:
        fleet.start_function("us-east-1")
        FleetTable(fleet.dynamodb, FLEET).launches.begin(reservation, [record], None, now_s=0)
        assert "i-00000001" in call(received)["body"]


def test_a_function_with_too_little_time_left_launches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_fleet(tmp_path, monkeypatch) as fleet:
        fleet.start_function("us-east-1")
        answer = call(event(body()), Context(remaining_ms=3_000))
        assert code_of(answer) == "ServiceUnavailable"
        assert "us-east-1: the time for this launch ran out" in message_of(answer)
        (kept,) = fleet.items()
        assert kept["state"] == {"S": "refused"}


def test_an_endpoint_of_a_region_that_is_none_is_refused_with_those_there_are(
    nothing: SmallFleet,
) -> None:
    del nothing
    answer = call(event(body()) | {"pathParameters": {"region": "mars-north-1"}})
    assert code_of(answer) == "InvalidParameterValue"
    assert "'mars-north-1'; the regions are us-east-1." in message_of(answer)


def test_each_action_that_is_understood_is_served() -> None:
    model = json.loads(MODEL_PATH.read_text(encoding="utf-8"))
    assert set(model["actions"]) == set(handler.ACTIONS)
