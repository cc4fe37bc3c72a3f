"""Wire messages: what one side encodes the other reads, and nothing else gets in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast import messages
from fleetcast.errors import InvalidMessage, UnsupportedMessageVersion
from fleetcast.messages import LaunchHeaders

_instance_ids = st.from_regex(r"\Ai-[0-9a-f]{8,17}\Z")
_instances = st.builds(
    messages.InstanceToLaunch, instance_id=_instance_ids, launch_index=st.integers(0, 2**31 - 1)
)
_requests = st.builds(
    messages.LaunchRequest,
    account_id=st.text(),
    instances=st.lists(_instances, min_size=1, max_size=5).map(tuple),
    instance_type=st.text(),
    image_id=st.text(),
    user_data_base64=st.none() | st.text(),
    key_name=st.none() | st.text(),
    shutdown_behavior=st.sampled_from(["stop", "terminate"]),
    tags=st.dictionaries(st.text(), st.text(), max_size=3),
)
_headers = st.builds(
    LaunchHeaders,
    launch_id=st.from_regex(r"\Ar-[0-9a-f]{8,17}\Z"),
    attempt=st.integers(1, 2**31 - 1),
    expires_at_ms=st.integers(0, 2**53 - 1),
    traceparent=st.none() | st.text(st.characters(codec="ascii", categories=["L", "N"])),
)


@given(_requests)
def test_a_launch_request_arrives_as_it_was_sent(request: messages.LaunchRequest) -> None:
    assert messages.decode(messages.encode(request), messages.LaunchRequest) == request


@given(_headers)
def test_launch_headers_arrive_as_they_were_sent(headers: LaunchHeaders) -> None:
    assert LaunchHeaders.decode(headers.encode()) == headers


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(payload: bytes) -> None:
    for kind in (messages.LaunchRequest, messages.InstancesReply, messages.RegionRequest):
        try:
            messages.decode(payload, kind)
        except InvalidMessage:
            continue
    try:
        messages.decode_launch_reply(payload)
    except InvalidMessage:
        return


@given(
    st.dictionaries(
        st.sampled_from(["Fleetcast-Launch-Id", "Fleetcast-Attempt", "Fleetcast-Expires-At"]),
        st.text(),
    )
)
def test_any_headers_are_launch_headers_or_refused(headers: dict[str, str]) -> None:
    try:
        decoded = LaunchHeaders.decode(headers)
    except InvalidMessage:
        return
    assert decoded.attempt >= 1


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"v":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"v":1e999}',
        b'{"v":' + b"9" * 5_000 + b"}",
        b'{"v":1,"instances":[{"instance_id":"i-12345678","launch_index":-1}]}',
    ],
)
def test_hostile_json_is_refused_like_any_other(payload: bytes) -> None:
    with pytest.raises(InvalidMessage):
        messages.decode(payload, messages.LaunchRequest)
    with pytest.raises(InvalidMessage):
        messages.decode_launch_reply(payload)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "i-",
        "i-1234567",
        "i-123456789012345678",
        "i-1234567G",
        "../../x",
        "i-12345678\n",
        "i-1/2",
    ],
)
def test_what_is_no_instance_id_is_refused(name: str) -> None:
    payload = msgspec.json.encode({"v": 1, "instance_ids": [name]})
    with pytest.raises(InvalidMessage):
        messages.decode(payload, messages.InstancesRequest)


@pytest.mark.parametrize("version", [None, 0, 2, 99, -1])
def test_another_version_is_refused_as_such(version: int | None) -> None:
    payload = msgspec.json.encode({"v": version, "instance_ids": []})
    with pytest.raises(UnsupportedMessageVersion):
        messages.decode(payload, messages.InstancesRequest)


def test_a_message_without_a_version_is_refused() -> None:
    with pytest.raises(UnsupportedMessageVersion):
        messages.decode(b'{"instance_ids":[]}', messages.InstancesRequest)


def test_the_outcome_decides_what_a_launch_reply_is() -> None:
    rejected = messages.Rejected(node="n1", reason="full")
    accepted = messages.Accepted(node="n1", zone=None, instance_ids=("i-12345678",))
    assert messages.decode_launch_reply(messages.encode(rejected)) == rejected
    assert messages.decode_launch_reply(messages.encode(accepted)) == accepted


def test_user_data_and_tags_stay_out_of_the_words_for_a_request() -> None:
    request = messages.LaunchRequest(
        account_id="000000000000",
        instances=(messages.InstanceToLaunch(instance_id="i-12345678", launch_index=0),),
        instance_type="t3.medium",
        image_id="ami-12345678",
        user_data_base64="c2VjcmV0",
        tags={"Name": "private"},
    )
    assert "c2VjcmV0" not in repr(request)
    assert "private" not in repr(request)
