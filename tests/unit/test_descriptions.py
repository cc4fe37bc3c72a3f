from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import (
    InvalidInstanceIDMalformed,
    InvalidInstanceIDNotFound,
    InvalidParameterCombination,
    InvalidParameterValue,
)
from lambdas.records import STATE_CODES, InstanceRecord
from lambdas.run_instances.descriptions import (
    chosen_records,
    describe_result,
    reservation_result,
    termination_result,
)

NOW_S = 1_800_000_000.0


def instance_id(number: int) -> str:
    return f"i-{number:017x}"


def record(number: int = 1, **changes: Any) -> InstanceRecord:  # noqa: ANN401 - any field's value
    plain = InstanceRecord(
        account_id="000000000000",
        reservation_id="r-00000000000000001",
        instance_id=instance_id(number),
        instance_type="t3.medium",
        image_id="ami-00000000000000001",
        architecture="x86_64",
        launch_index=0,
        launched_at_s=NOW_S - 60,
        state="running",
        region="us-east-1",
        node="n1",
    )
    return msgspec.structs.replace(plain, **changes)


def instances_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for reservation in result["Reservations"] for each in reservation["Instances"]]


def described_ids(records: list[InstanceRecord], parameters: dict[str, Any]) -> list[str]:
    result = describe_result(records, parameters, now_s=NOW_S)
    return [each["InstanceId"] for each in instances_of(result)]


def filtered_ids(records: list[InstanceRecord], name: str, *values: str) -> list[str]:
    return described_ids(records, {"Filters": [{"Name": name, "Values": list(values)}]})


# --- what an instance looks like ---------------------------------------------------------------


def test_a_reservation_lists_its_instances_by_launch_index() -> None:
    records = [record(number, launch_index=number) for number in (2, 0, 1)]
    result: dict[str, Any] = reservation_result(records)
    assert result["ReservationId"] == "r-00000000000000001"
    assert result["OwnerId"] == "000000000000"
    assert [each["AmiLaunchIndex"] for each in result["Instances"]] == [0, 1, 2]


def test_an_instance_shows_its_node_as_host_and_its_zone() -> None:
    (shown,) = instances_of(describe_result([record(zone="us-east-1b")], {}, now_s=NOW_S))
    assert shown["Placement"]["HostId"] == "n1"
    assert shown["Placement"]["AvailabilityZone"] == "us-east-1b"


def test_without_a_zone_the_region_stands_in() -> None:
    (shown,) = instances_of(describe_result([record()], {}, now_s=NOW_S))
    assert shown["Placement"]["AvailabilityZone"] == "us-east-1"


def test_a_pending_instance_that_no_node_has_accepted_names_no_place() -> None:
    pending = record(state="pending", region=None, node=None)
    (shown,) = instances_of(describe_result([pending], {}, now_s=NOW_S))
    assert shown["Placement"]["AvailabilityZone"] is None
    assert shown["State"] == {"Code": 0, "Name": "pending"}


def test_the_launch_time_is_in_utc_and_whole_seconds() -> None:
    (shown,) = instances_of(describe_result([record(launched_at_s=1.9)], {}, now_s=NOW_S))
    assert shown["LaunchTime"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_an_instance_without_tags_has_no_tag_set_as_at_ec2() -> None:
    (shown,) = instances_of(describe_result([record()], {}, now_s=NOW_S))
    assert shown["Tags"] is None


def test_why_an_instance_ended_is_shown() -> None:
    ended = record(
        state="terminated",
        terminated_at_s=NOW_S,
        state_reason_code="Client.UserInitiatedShutdown",
        state_reason_message="User initiated shutdown",
    )
    (shown,) = instances_of(describe_result([ended], {}, now_s=NOW_S))
    assert shown["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert shown["StateTransitionReason"] == "User initiated shutdown"


def test_an_instance_whose_node_does_not_answer_keeps_its_state_and_says_so() -> None:
    silent = record(state="running", node="n7", unreachable_since_s=1_700_000_000.9)
    (shown,) = instances_of(describe_result([silent], {}, now_s=NOW_S))
    assert shown["State"]["Name"] == "running"
    assert shown["StateReason"] == {
        "Code": "Server.NodeUnreachable",
        "Message": "Server.NodeUnreachable: node n7 has not answered since 2023-11-14T22:13:20Z; "
        "the state is the last one known",
    }


def test_a_termination_shows_each_state_before_and_after() -> None:
    before = record()
    after = record(state="shutting-down")
    assert termination_result([(before, after)]) == {
        "TerminatingInstances": [
            {
                "InstanceId": instance_id(1),
                "PreviousState": {"Code": 16, "Name": "running"},
                "CurrentState": {"Code": 32, "Name": "shutting-down"},
            }
        ]
    }


# --- which instances -----------------------------------------------------------------------------


def test_instances_are_grouped_by_reservation() -> None:
    records = [
        record(1, reservation_id="r-a"),
        record(2, reservation_id="r-b"),
        record(3, reservation_id="r-a", launch_index=1, launched_at_s=NOW_S),  # was restarted
    ]
    result: dict[str, Any] = describe_result(records, {}, now_s=NOW_S)
    by_reservation = {
        each["ReservationId"]: [one["InstanceId"] for one in each["Instances"]]
        for each in result["Reservations"]
    }
    assert by_reservation == {"r-a": [instance_id(1), instance_id(3)], "r-b": [instance_id(2)]}


def test_named_instances_are_shown_once_each() -> None:
    wanted = [instance_id(3), instance_id(1), instance_id(3)]
    records = [record(number) for number in range(5)]
    assert described_ids(records, {"InstanceIds": wanted}) == [instance_id(1), instance_id(3)]


def test_named_instances_still_have_to_pass_the_filters() -> None:
    parameters = {
        "InstanceIds": [instance_id(1)],
        "Filters": [{"Name": "instance-state-name", "Values": ["stopped"]}],
    }
    assert described_ids([record(1)], parameters) == []


@pytest.mark.parametrize(
    "name", ["", "foo", "i-", "i-123", "i-0000000g", "I-00000001", "i-00000001\n"]
)
def test_a_malformed_id_is_told_as_ec2_tells_it(name: str) -> None:
    with pytest.raises(InvalidInstanceIDMalformed) as refusal:
        describe_result([record()], {"InstanceIds": [name]}, now_s=NOW_S)
    assert refusal.value.message == f'Invalid id: "{name}"'


def test_unknown_ids_are_all_named() -> None:
    with pytest.raises(InvalidInstanceIDNotFound) as one:
        chosen_records([record(1)], ["i-0000000a"], now_s=NOW_S)
    assert one.value.message == "The instance ID 'i-0000000a' does not exist"
    with pytest.raises(InvalidInstanceIDNotFound) as two:
        chosen_records([record(1)], ["i-0000000a", instance_id(1), "i-0000000b"], now_s=NOW_S)
    assert two.value.message == "The instance IDs 'i-0000000a, i-0000000b' do not exist"


def test_a_terminated_instance_stays_visible_for_an_hour() -> None:
    ended = record(state="terminated", terminated_at_s=NOW_S)
    for parameters in ({}, {"InstanceIds": [ended.instance_id]}):
        shown = describe_result([ended], parameters, now_s=NOW_S + 3_599)
        assert len(instances_of(shown)) == 1
    assert instances_of(describe_result([ended], {}, now_s=NOW_S + 3_600)) == []
    with pytest.raises(InvalidInstanceIDNotFound):
        describe_result([ended], {"InstanceIds": [ended.instance_id]}, now_s=NOW_S + 3_600)


# --- filters -------------------------------------------------------------------------------------

REQUEST_NAME = "token-1"
FULL = record(
    1,
    zone="us-east-1b",
    key_name="ops",
    client_token=REQUEST_NAME,
    tags={"role": "web", "a*b": "x"},
)
OTHER = record(
    2,
    reservation_id="r-00000000000000002",
    instance_type="m5.large",
    image_id="ami-00000000000000002",
    architecture="arm64",
    state="stopped",
    region="eu-west-1",
    node="n2",
    account_id="111111111111",
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architecture", "x86_64"),
        ("availability-zone", "us-east-1b"),
        ("client-token", REQUEST_NAME),
        ("host-id", "n1"),
        ("image-id", "ami-00000000000000001"),
        ("instance-id", instance_id(1)),
        ("instance-state-code", "16"),
        ("instance-state-name", "running"),
        ("instance-type", "t3.medium"),
        ("key-name", "ops"),
        ("owner-id", "000000000000"),
        ("reservation-id", "r-00000000000000001"),
        ("tag-key", "role"),
        ("tag:role", "web"),
    ],
)
def test_each_filter_finds_the_instance_that_has_the_value(name: str, value: str) -> None:
    assert filtered_ids([FULL, OTHER], name, value) == [instance_id(1)]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("t3.*", True),
        ("t?.medium", True),
        ("*", True),
        ("t3", False),
        ("T3.medium", False),
        ("t3.medium*", True),
        ("t3.medium?", False),
        ("[t]3.medium", False),
        ("t3.mediu[m]", False),
        ("", False),
    ],
)
def test_wildcards_work_as_at_ec2(pattern: str, *, matches: bool) -> None:
    assert bool(filtered_ids([FULL], "instance-type", pattern)) is matches


@pytest.mark.parametrize(("value", "matches"), [(r"a\*b", True), (r"a\?b", False), ("a*b", True)])
def test_a_backslash_takes_a_wildcard_literally(value: str, *, matches: bool) -> None:
    assert bool(filtered_ids([FULL], "tag-key", value)) is matches


@given(text=st.text(max_size=30))
def test_an_escaped_value_matches_exactly_itself(text: str) -> None:
    escaped = "".join(f"\\{each}" if each in "*?\\" else each for each in text)
    tagged = record(1, tags={"k": text})
    other = record(2, tags={"k": text + "x"})
    assert filtered_ids([tagged, other], "tag:k", escaped) == [instance_id(1)]


def test_a_pattern_of_many_stars_is_decided_at_once() -> None:
    tagged = record(1, tags={"k": "a" * 255})
    assert filtered_ids([tagged], "tag:k", "*a" * 100 + "b") == []


def test_values_are_alternatives_and_filters_all_apply() -> None:
    assert filtered_ids([FULL, OTHER], "instance-state-name", "running", "stopped") == [
        instance_id(1),
        instance_id(2),
    ]
    both = [
        {"Name": "instance-state-name", "Values": ["running", "stopped"]},
        {"Name": "instance-type", "Values": ["m5.*"]},
    ]
    assert described_ids([FULL, OTHER], {"Filters": both}) == [instance_id(2)]


def test_what_an_instance_does_not_have_matches_nothing() -> None:
    assert filtered_ids([OTHER], "key-name", "*") == []
    assert filtered_ids([OTHER], "tag:role", "*") == []


@pytest.mark.parametrize("name", ["colour", "", "tag", "Instance-Id"])
def test_an_unknown_filter_is_refused_rather_than_ignored(name: str) -> None:
    with pytest.raises(InvalidParameterValue, match=f"The filter '{name}' is invalid"):
        filtered_ids([FULL], name, "x")


def test_a_filter_without_values_is_refused() -> None:
    with pytest.raises(InvalidParameterValue, match="has no values"):
        described_ids([FULL], {"Filters": [{"Name": "instance-id"}]})


@pytest.mark.parametrize("state", list(STATE_CODES))
def test_every_state_has_the_code_that_its_filter_finds(state: str) -> None:
    code = str(STATE_CODES[state])  # type: ignore[index]  # the keys are the states
    assert filtered_ids([record(1, state=state)], "instance-state-code", code) == [instance_id(1)]


# --- pages ---------------------------------------------------------------------------------------


@given(
    launches=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=12),
    page_size=st.integers(5, 12),
)
def test_pages_together_hold_every_instance_once(
    launches: list[tuple[int, int]], page_size: int
) -> None:
    records = [
        record(
            launch * 100 + index,
            reservation_id=f"r-{launch:017x}",
            launch_index=index,
            launched_at_s=NOW_S - age_s,
        )
        for launch, (age_s, size) in enumerate(launches)
        for index in range(size)
    ]
    seen: list[str] = []
    token = None
    for _ in range(len(records) + 1):
        parameters = {"MaxResults": page_size} | ({"NextToken": token} if token else {})
        result: dict[str, Any] = describe_result(records, parameters, now_s=NOW_S)
        page = [each["InstanceId"] for each in instances_of(result)]
        assert len(page) <= page_size
        seen += page
        token = result["NextToken"]
        if token is None:
            break
    assert sorted(seen) == sorted(each.instance_id for each in records)


def test_an_instance_launched_between_two_pages_is_on_the_later_one() -> None:
    records = [record(number, reservation_id="r-b", launch_index=number) for number in range(6)]
    first: dict[str, Any] = describe_result(records, {"MaxResults": 5}, now_s=NOW_S)
    records.append(record(9, reservation_id="r-a", launched_at_s=NOW_S))
    assert described_ids(records, {"MaxResults": 5, "NextToken": first["NextToken"]}) == [
        instance_id(5),
        instance_id(9),
    ]


def test_an_answer_is_bounded_when_nobody_asks_for_pages() -> None:
    records = [record(number, launch_index=number) for number in range(1_001)]
    result: dict[str, Any] = describe_result(records, {}, now_s=NOW_S)
    assert len(instances_of(result)) == 1_000
    assert result["NextToken"] is not None


@pytest.mark.parametrize("size", [-1, 0, 4, 1_001])
def test_a_page_size_outside_ec2s_range_is_refused(size: int) -> None:
    with pytest.raises(InvalidParameterValue, match="maxResults"):
        describe_result([], {"MaxResults": size}, now_s=NOW_S)


def test_a_page_size_together_with_ids_is_refused() -> None:
    with pytest.raises(InvalidParameterCombination):
        describe_result([], {"MaxResults": 5, "InstanceIds": [instance_id(1)]}, now_s=NOW_S)


@pytest.mark.parametrize("token", ["", "x", "é", "e30=", "WzFd", "a" * 1000])
def test_a_token_that_is_not_ours_is_refused(token: str) -> None:
    with pytest.raises(InvalidParameterValue, match="pagination token"):
        describe_result([], {"NextToken": token}, now_s=NOW_S)
