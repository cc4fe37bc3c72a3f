"""What real launches leave behind, as the read API tells it; and each region's own endpoint."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fleetcast.launch_words import tell_launch
from lambdas.fleet_table import FleetTable
from lambdas.read_api.launches import read_launch
from tests.ec2_endpoint import ACCOUNT, ec2_client, error_of
from tests.small_fleet import TYPE, SmallFleet, small_fleet
from tests.tables import FLEET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fleetcast.read_answers import LaunchAnswer

A, B = "us-east-1", "eu-west-1"
NO_CAPACITY = "InsufficientInstanceCapacity"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    """A has room for one, B for three on two nodes."""
    with small_fleet(tmp_path, monkeypatch) as made:
        for region in (A, B):
            made.start_region(region)
        made.start_agent(A, "a1", slots=1)
        made.start_agent(B, "b1", slots=1)
        made.start_agent(B, "b2", slots=2)
        made.start_function(A, B)
        yield made


def launch(count: int = 1, *, path: str = "/", **how: Any) -> Any:  # noqa: ANN401 - botocore's answers
    return ec2_client(path=path).run_instances(
        **{
            "ImageId": "ami-00000001",
            "InstanceType": TYPE,
            "MinCount": count,
            "MaxCount": count,
            **how,
        }
    )


def refused(count: int = 1, **how: Any) -> tuple[str, str, int]:  # noqa: ANN401 - as launch
    with pytest.raises(ClientError) as error:
        launch(count, **how)
    return error_of(error.value)


def explained(fleet: SmallFleet, reservation_id: str) -> LaunchAnswer:
    table = FleetTable(fleet.dynamodb, FLEET)
    return read_launch(table, ACCOUNT, reservation_id, now_s=time.time())


def the_launch(fleet: SmallFleet, state: str) -> LaunchAnswer:
    """Return the one launch that is in this state."""
    [found] = [
        item["reservation_id"]["S"]
        for item in fleet.items()
        if item["sk"]["S"].startswith("RESERVATION#") and item["state"]["S"] == state
    ]
    return explained(fleet, found)


def words(answer: LaunchAnswer) -> str:
    return "\n".join(line.text for line in tell_launch(answer))


# --- explained -----------------------------------------------------------------------------


def test_a_launch_that_needed_two_nodes_of_the_second_region_tells_all_of_it(
    fleet: SmallFleet,
) -> None:
    reservation = launch(3)

    answer = explained(fleet, reservation["ReservationId"])

    assert (answer.state, answer.region) == ("placed", B)
    assert sorted(one.node or "" for one in answer.instances) == ["b1", "b2", "b2"]
    assert answer.story is not None
    assert [(one.region, one.end) for one in answer.story.verdicts] == [
        (A, "no_room"),
        (B, "placed"),
    ]
    told = words(answer)
    assert f"ec2.RunInstances.{A}.{TYPE}, 3 instances, attempt 1: accepted by node a1" in told
    assert "left: room for 1 only" in told
    assert "Release, 1 instance, attempt 1: given up" in told
    assert "Commit, 3 instances, attempt 2: told to boot" in told
    assert "accepted by node b1" in told
    assert "accepted by node b2" in told


def test_a_refused_launch_tells_what_its_caller_was_told_and_why(fleet: SmallFleet) -> None:
    code, message, _ = refused(4)

    answer = the_launch(fleet, "refused")

    assert code == NO_CAPACITY
    assert answer.story is not None
    assert (answer.story.error_code, answer.story.error_message) == (code, message)
    assert answer.instances == ()
    assert f"The caller was told {NO_CAPACITY}: {message}" in words(answer)


def test_a_region_that_could_not_be_asked_is_told_apart_from_one_without_room(
    fleet: SmallFleet,
) -> None:
    fleet.kill_region(A)

    code, _, _ = refused(4)

    assert code == "ServiceUnavailable"
    told = words(the_launch(fleet, "refused"))
    assert "left, and whether it has room is not known: " in told
    assert "left: room for 3 only" in told


# --- one region only -----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "/"])
def test_a_launch_at_a_regions_endpoint_goes_there_or_nowhere(fleet: SmallFleet, end: str) -> None:
    first = launch(path=f"/regions/{A}{end}")
    code, message, _ = refused(path=f"/regions/{A}{end}")

    answer = explained(fleet, first["ReservationId"])
    assert (answer.region, answer.pinned) == (A, True)
    assert "tried alone: the caller asked for this place" in words(answer)
    assert code == NO_CAPACITY  # though the other region has room
    assert A in message
    assert B not in message
    assert {record.region for record in fleet.records()} == {A}


@pytest.mark.usefixtures("fleet")
def test_a_zone_narrows_a_region_further() -> None:
    elsewhere = {"AvailabilityZone": f"{B}z"}
    there = {"AvailabilityZone": f"{B}a"}

    assert refused(path=f"/regions/{B}/", Placement=elsewhere)[0] == NO_CAPACITY
    [instance] = launch(path=f"/regions/{B}/", Placement=there)["Instances"]
    assert instance["Placement"]["HostId"] in {"b1", "b2"}


@pytest.mark.usefixtures("fleet")
def test_a_region_that_the_fleet_does_not_have_is_said_with_those_it_has() -> None:
    code, message, _ = refused(path="/regions/mars-north-1/")

    assert code == "InvalidParameterValue"
    assert f"the regions are {A}, {B}" in message
