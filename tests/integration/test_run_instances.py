"""The EC2 function end to end: its client, its tables, real NATS servers and real agents."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fleetcast.local.conditions import wait_until
from lambdas.attribute_values import encode_item
from lambdas.fleet_table import FleetTable
from tests.captured_logs import captured_logs
from tests.ec2_endpoint import ACCOUNT, ec2_client, error_of
from tests.small_fleet import TYPE, SmallFleet, small_fleet
from tests.tables import FLEET, REGION_SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_ec2 import EC2Client

IMAGE = "ami-00000001"
A, B = "us-east-1", "eu-west-1"
GONE = {"shutting-down", "terminated"}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(scope="module")
def client() -> EC2Client:
    return ec2_client()  # takes a second to make


def one_node(fleet: SmallFleet, *, slots: int = 4) -> None:
    fleet.start_region(A)
    fleet.start_agent(A, "n1", slots=slots)
    fleet.start_function(A)


def launch(client: EC2Client, count: int = 1, **how: Any) -> Any:  # noqa: ANN401 - botocore's answers
    """Launch `count` t3.medium, or as `how` says."""
    return client.run_instances(
        **{
            "ImageId": IMAGE,
            "InstanceType": TYPE,
            "MinCount": count,
            "MaxCount": count,
            **how,
        }
    )


def ids(reservation: Any) -> list[str]:  # noqa: ANN401 - botocore's answers
    return [instance["InstanceId"] for instance in reservation["Instances"]]


def refused(client: EC2Client, count: int = 1, **how: Any) -> tuple[str, str, int]:  # noqa: ANN401 - as launch
    with pytest.raises(ClientError) as error:
        launch(client, count, **how)
    return error_of(error.value)


def fits(client: EC2Client, count: int = 1) -> bool:
    """Launch if there is room, and say whether there was."""
    try:
        launch(client, count)
    except ClientError as error:
        if error_of(error)[0] == "InsufficientInstanceCapacity":
            return False
        raise
    return True


def described(client: EC2Client, *names: str) -> dict[str, Any]:
    answer = client.describe_instances(InstanceIds=list(names))
    return {
        instance["InstanceId"]: instance
        for reservation in answer["Reservations"]
        for instance in reservation["Instances"]
    }


def states(client: EC2Client, *names: str) -> set[str]:
    return {instance["State"]["Name"] for instance in described(client, *names).values()}


def become(client: EC2Client, state: str, *names: str) -> bool:
    return wait_until(lambda: states(client, *names) == {state}, deadline_s=15)


# --- launching -----------------------------------------------------------------------------


def test_a_launch_is_answered_as_ec2_does_and_runs(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet)
    tags = [{"Key": "Name", "Value": "web"}]
    reservation = launch(
        client, TagSpecifications=[{"ResourceType": "instance", "Tags": tags}], KeyName="mine"
    )
    (instance,) = reservation["Instances"]
    assert instance["State"] == {"Code": 0, "Name": "pending"}
    assert instance["Placement"]["AvailabilityZone"] == f"{A}a"
    assert (instance["InstanceType"], instance["ImageId"]) == (TYPE, IMAGE)
    assert (instance["KeyName"], instance["Tags"]) == ("mine", tags)
    assert become(client, "running", instance["InstanceId"])


def test_what_was_launched_is_found_at_once(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet, slots=10)
    for _ in range(5):
        launched = ids(launch(client, 2))
        assert set(described(client, *launched)) == set(launched)


def test_another_account_sees_nothing_of_it(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet)
    (name,) = ids(launch(client))
    other = ec2_client(account="999999999999")
    assert other.describe_instances()["Reservations"] == []
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        other.terminate_instances(InstanceIds=[name])
    assert states(client, name) <= {"pending", "running"}


def test_room_for_max_count_gives_max_count(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet, slots=3)
    reservation = launch(client, MinCount=1, MaxCount=3)
    assert [one["AmiLaunchIndex"] for one in reservation["Instances"]] == [0, 1, 2]


def test_room_for_fewer_than_max_count_gives_what_there_is(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet, slots=2)
    launched = ids(launch(client, MinCount=1, MaxCount=5))
    assert len(launched) == 2
    assert sorted(described(client)) == sorted(launched)


def test_a_node_that_is_full_is_followed_by_the_next(fleet: SmallFleet, client: EC2Client) -> None:
    fleet.start_region(A)
    fleet.start_agent(A, "n1", slots=1)
    fleet.start_agent(A, "n2", slots=1)
    fleet.start_function(A)
    launch(client, 2)
    assert {record.node for record in fleet.records()} == {"n1", "n2"}
    assert refused(client)[0] == "InsufficientInstanceCapacity"


def test_a_launch_below_min_count_leaves_nothing_behind(
    fleet: SmallFleet, client: EC2Client
) -> None:
    fleet.start_region(A)
    fleet.start_agent(A, "n1", slots=1)
    fleet.start_agent(A, "n2", slots=1)
    fleet.start_function(A)
    code, message, _ = refused(client, 3)
    assert code == "InsufficientInstanceCapacity"
    assert f"{A}: room for 2 only" in message
    assert not fleet.records()
    assert wait_until(lambda: fits(client, 2), deadline_s=15), "both nodes give theirs up"


def test_a_launch_pinned_to_a_zone_goes_nowhere_else(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet)
    code, message, _ = refused(client, Placement={"AvailabilityZone": f"{A}b"})
    assert code == "InsufficientInstanceCapacity"
    assert f"in zone {A}b" in message
    launch(client, Placement={"AvailabilityZone": f"{A}a"})


@pytest.mark.parametrize("pinned", [False, True])
def test_a_launch_is_kept_with_its_type_its_time_and_where_it_went(
    fleet: SmallFleet, client: EC2Client, *, pinned: bool
) -> None:
    one_node(fleet)
    how: dict[str, Any] = {"Placement": {"AvailabilityZone": f"{A}a"}} if pinned else {}
    reservation_id = launch(client, **how)["ReservationId"]
    (record,) = fleet.records()
    kept = FleetTable(fleet.dynamodb, FLEET).launches.read(ACCOUNT, reservation_id)
    assert kept is not None
    assert (kept.instance_type, kept.launched_at_s) == (TYPE, record.launched_at_s)
    assert (kept.region, kept.pinned) == (A, pinned)


# --- regions -------------------------------------------------------------------------------


def two_regions(fleet: SmallFleet, *, slots: int = 1) -> None:
    for region, node in ((A, "n1"), (B, "m1")):
        fleet.start_region(region)
        fleet.start_agent(region, node, slots=slots)


def score(fleet: SmallFleet, region: str, value: float) -> None:
    item = {
        "pk": f"TYPE#{TYPE}",
        "sk": f"REGION#{region}",
        "score": value,
        "missing_scored_signals": 0,
        "telemetry_status": "complete",
        "computed_at": 4_000_000_000,
    }
    fleet.dynamodb.put_item(TableName=REGION_SCORES, Item=encode_item(item))


@pytest.mark.parametrize("default", [A, B])
def test_without_scores_the_default_region_comes_first(
    fleet: SmallFleet, client: EC2Client, default: str
) -> None:
    two_regions(fleet)
    fleet.start_function(A, B, default_region=default)
    launch(client)
    assert {record.region for record in fleet.records()} == {default}


def test_the_better_region_comes_first_then_the_other_then_nobody(
    fleet: SmallFleet, client: EC2Client
) -> None:
    two_regions(fleet)
    fleet.start_function(A, B)
    score(fleet, A, 0.9)
    score(fleet, B, 0.1)
    zones = [launch(client)["Instances"][0]["Placement"]["AvailabilityZone"] for _ in range(2)]
    assert zones == [f"{B}a", f"{A}a"]
    code, message, status = refused(client)
    assert (code, status) == ("InsufficientInstanceCapacity", 500)
    assert f"{A}: no node has room" in message
    assert f"{B}: no node has room" in message


@pytest.mark.parametrize("broken", ["a row that no sweep wrote", "no table"])
def test_scores_that_cannot_be_read_do_not_stop_a_launch(
    fleet: SmallFleet, client: EC2Client, broken: str
) -> None:
    one_node(fleet)
    if broken == "no table":
        fleet.dynamodb.delete_table(TableName=REGION_SCORES)
    else:
        odd = encode_item({"pk": f"TYPE#{TYPE}", "sk": f"REGION#{A}", "score": "high"})
        fleet.dynamodb.put_item(TableName=REGION_SCORES, Item=odd)
    launch(client)


def test_a_region_that_cannot_be_reached_is_named_and_is_no_lack_of_capacity(
    fleet: SmallFleet, client: EC2Client
) -> None:
    fleet.start_region(A)
    fleet.start_function(A, B)
    code, message, status = refused(client)
    assert (code, status) == ("ServiceUnavailable", 503)
    assert f"{B}: can't connect to NATS" in message
    assert f"{A}: no node has room" in message
    assert not fleet.records()


def test_a_region_that_comes_back_is_used_again(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet)
    launch(client)
    fleet.kill_region(A)
    assert refused(client)[0] == "ServiceUnavailable"
    fleet.start_region(A)

    assert wait_until(lambda: fits(client), deadline_s=15), "the agent reconnects, too"


# --- client tokens -------------------------------------------------------------------------


def test_a_repeated_token_is_answered_with_the_same_launch(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet)
    first = launch(client, 2, ClientToken="once")
    again = launch(client, 2, ClientToken="once")
    assert first["ReservationId"] == again["ReservationId"]
    assert ids(first) == ids(again)
    assert len(fleet.records()) == 2


def test_a_repeated_token_with_other_parameters_is_refused(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet)
    launch(client, ClientToken="once", UserData="one")
    for change in ({"UserData": "two"}, {"MaxCount": 2}, {"InstanceType": "t3.nano"}):
        how: dict[str, Any] = {"UserData": "one", **change}
        assert refused(client, ClientToken="once", **how)[0] == "IdempotentParameterMismatch"
    assert len(fleet.records()) == 1


def test_a_repeated_token_whose_instances_are_gone_says_so(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet)
    client.terminate_instances(InstanceIds=ids(launch(client, ClientToken="once")))
    assert refused(client, ClientToken="once")[0] == "IdempotentInstanceTerminated"


def test_a_token_whose_launch_was_refused_launches_when_there_is_room(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet, slots=1)
    (name,) = ids(launch(client))
    assert refused(client, ClientToken="later")[0] == "InsufficientInstanceCapacity"
    client.terminate_instances(InstanceIds=[name])
    assert become(client, "terminated", name)
    assert len(ids(launch(client, ClientToken="later"))) == 1


def test_botocores_own_retries_of_a_refusal_each_ask_again(fleet: SmallFleet) -> None:
    fleet.start_region(A)
    fleet.start_function(A)
    with captured_logs("lambdas") as logs:
        assert refused(ec2_client(attempts=2))[0] == "InsufficientInstanceCapacity"
    decided = logs.fields("launch decided")
    assert [line["outcome"] for line in decided] == ["InsufficientInstanceCapacity"] * 2


# --- terminating ---------------------------------------------------------------------------


def test_terminating_gives_the_room_back_and_may_be_repeated(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet, slots=1)
    (name,) = ids(launch(client))
    assert become(client, "running", name)
    (change,) = client.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
    assert change["PreviousState"]["Name"] == "running"
    assert change["CurrentState"]["Name"] in GONE
    (repeated,) = client.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
    assert repeated["CurrentState"]["Name"] in GONE
    assert become(client, "terminated", name)
    launch(client)


def test_an_unknown_id_leaves_the_others_untouched(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet)
    (name,) = ids(launch(client))
    assert become(client, "running", name)
    for unknown, code in (
        ("i-0badbadbadbadbad0", "InvalidInstanceID.NotFound"),
        ("i-" + "a" * 3000, "InvalidInstanceID.Malformed"),
    ):
        with pytest.raises(ClientError) as error:
            client.terminate_instances(InstanceIds=[name, unknown])
        assert error_of(error.value)[0] == code
    assert states(client, name) == {"running"}


def test_an_instance_on_a_node_that_is_down_is_not_called_terminated_until_it_is(
    fleet: SmallFleet, client: EC2Client
) -> None:
    one_node(fleet)
    (name,) = ids(launch(client))
    assert become(client, "running", name)
    fleet.kill_agent("n1")
    (change,) = client.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
    assert change["CurrentState"]["Name"] == "shutting-down"
    assert states(client, name) == {"shutting-down"}
    fleet.restart_agent("n1")
    assert become(client, "terminated", name), "the node hears of it when it is back"


def test_describing_one_instance_asks_no_other_node(fleet: SmallFleet, client: EC2Client) -> None:
    two_regions(fleet)
    fleet.start_function(A, B)
    (here,), (there,) = ids(launch(client)), ids(launch(client))
    fleet.kill_region(B)
    client.terminate_instances(InstanceIds=[there])
    with captured_logs("lambdas") as logs:
        described(client, here)
    assert not logs.fields("node gave no answer")


# --- what is asked for without being done, and what is said of it ---------------------------


def test_a_dry_run_launches_and_terminates_nothing(fleet: SmallFleet, client: EC2Client) -> None:
    one_node(fleet)
    assert refused(client, DryRun=True)[::2] == ("DryRunOperation", 412)
    assert fleet.items() == []
    (name,) = ids(launch(client))
    with pytest.raises(ClientError, match="DryRunOperation"):
        client.terminate_instances(InstanceIds=[name], DryRun=True)
    assert not states(client, name) & GONE


def test_neither_user_data_nor_tags_are_in_any_log(fleet: SmallFleet, client: EC2Client) -> None:
    secret, key, value = "user-data-51ab", "tag-key-51ab", "tag-value-51ab"
    one_node(fleet, slots=2)
    tags = [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value}]}]
    how: dict[str, Any] = {"UserData": secret, "TagSpecifications": tags}
    with captured_logs("lambdas") as logs:
        launch(client, ClientToken="once", **how)
        launch(client, ClientToken="once", **how)
        refused(client, ClientToken="once", UserData=secret + "2")
        refused(client, 5, **how)
        refused(client, UserData=secret * 5_000)
        refused(client, TagSpecifications=tags * 2)
        described(client)
        fleet.kill_region(A)
        refused(client, **how)
        fleet.dynamodb.delete_table(TableName=FLEET)
        assert refused(client, **how)[0] == "InternalError"
    everything = logs.text() + fleet.agent_logs()
    assert "launch decided" in everything
    assert "ResourceNotFoundException" in everything
    for hidden in (secret, base64.b64encode(secret.encode()).decode(), key, value):
        assert hidden not in everything
