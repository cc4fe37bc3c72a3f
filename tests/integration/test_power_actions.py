"""Starting, stopping and rebooting, on nodes that obey, are full, are silent or know better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetcast.errors import (
    DryRunOperation,
    EC2Error,
    IncorrectInstanceState,
    InsufficientInstanceCapacity,
    InternalError,
    InvalidInstanceIDMalformed,
    InvalidInstanceIDNotFound,
    MissingParameter,
    ServiceUnavailable,
    UnknownParameter,
)
from tests.instance_owner import Owner, put
from tests.reconciled_world import World, a_world
from tests.scripted_nodes import instance_id, report
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.messages import InstanceState

ACTIONS = ("StartInstances", "StopInstances", "RebootInstances")
USER_STOP = "Client.UserInitiatedShutdown: User initiated shutdown"


@pytest.fixture
def world() -> Iterator[World]:
    with tables(FLEET, REGION_SCORES) as dynamodb:
        yield a_world(dynamodb)


@pytest.fixture
def owner(world: World) -> Owner:
    return Owner(world)


def orders(world: World) -> list[tuple[str, str]]:
    return [(node, action) for node, action, _ in world.nodes.orders]


# --- stopping ------------------------------------------------------------------------------


async def test_what_runs_is_stopped_and_the_answer_tells_both_states(
    world: World, owner: Owner
) -> None:
    put(world, 1, "running")
    world.node("n1").slow = True
    assert await owner.stop(1) == {1: ("running", "stopping")}
    assert world.node("n1").states() == {instance_id(1): "stopping"}
    assert world.state(1) == "stopping"


async def test_a_stop_says_why_and_when_as_ec2_does(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    world.nodes.now_s = 1_700_000_000.0
    world.node("n1").silent = True
    await owner.stop(1)
    shown = (await owner.described())[instance_id(1)]
    assert shown["StateReason"] == {"Code": "Client.UserInitiatedShutdown", "Message": USER_STOP}
    assert shown["StateTransitionReason"] == "User initiated (2023-11-14 22:13:20 GMT)"


async def test_why_it_was_stopped_is_gone_when_it_runs_again(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    await owner.stop(1)
    await owner.start(1)
    shown = (await owner.described())[instance_id(1)]
    assert (shown["StateReason"], shown["StateTransitionReason"]) == (None, "")


async def test_stopping_what_stops_or_has_stopped_changes_nothing(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopping")
    put(world, 2, "stopped")
    world.node("n1").slow = True
    assert await owner.stop(1, 2) == {1: ("stopping", "stopping"), 2: ("stopped", "stopped")}


async def test_a_stop_outlasts_the_silence_of_its_node(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    world.node("n1").silent = True
    assert await owner.stop(1) == {1: ("running", "stopping")}
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "stopping"
    world.node("n1").silent = False
    assert world.node("n1").states() == {instance_id(1): "running"}, "it has not heard of it"
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "stopped"
    assert world.node("n1").states() == {instance_id(1): "stopped"}


async def test_a_stop_is_repeated_while_the_node_still_says_that_it_runs(
    world: World, owner: Owner
) -> None:
    put(world, 1, "running", really="pending")  # its agent has come back, and boots it again
    assert await owner.stop(1) == {1: ("running", "stopping")}
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "stopping"
    world.node("n1").hold(report(1, state="running"))
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "stopped"


async def test_asking_after_a_stop_that_was_heard_does_not_stop_anything(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopping")
    put(world, 2, "stopping", really="stopped")
    await owner.described()
    assert {action for _, action in orders(world)} == {"Describe"}


async def test_a_stop_that_was_not_heard_is_not_repeated_once_it_has_been_started_again(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopping", really="running")
    reads = iter([True])

    def has_been_started(**_: object) -> None:
        if next(reads, False):
            (record,) = world.records().values()
            for state in ("stopped", "running"):
                after = msgspec.structs.replace(record, state=state)
                assert world.fleet.change_state(record, after)
                record = after

    events: Any = world.dynamodb.meta.events
    events.register("before-call.dynamodb.BatchGetItem", has_been_started)
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "running"
    assert ("n1", "Stop") not in orders(world)


async def test_a_stop_outdoes_a_start_that_had_no_answer(world: World, owner: Owner) -> None:
    put(world, 1, "stopped")
    world.node("n1").slow = world.node("n1").garbled = True
    with pytest.raises(ServiceUnavailable):
        await owner.start(1)
    world.node("n1").slow = world.node("n1").garbled = False
    assert world.node("n1").states() == {instance_id(1): "pending"}
    assert await owner.stop(1) == {1: ("stopped", "stopping")}
    world.node("n1").hold(report(1, state="running"))
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "stopped"


async def test_force_is_taken_and_hibernation_is_not(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    with pytest.raises(UnknownParameter):
        await owner.stop(1, Hibernate=True)
    assert world.state(1) == "running"
    await owner.stop(1, Force=True, SkipOsShutdown=True, Hibernate=False)
    assert world.state(1) == "stopped"


async def test_a_stop_that_meets_a_termination_does_not_undo_it(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    moves = iter([True])

    def is_terminated(**_: object) -> None:
        if next(moves, False):
            (record,) = world.records().values()
            ending = msgspec.structs.replace(record, state="shutting-down")
            assert world.fleet.change_state(record, ending)

    events: Any = world.dynamodb.meta.events
    events.register("before-call.dynamodb.UpdateItem", is_terminated)
    assert await owner.stop(1) == {1: ("running", "shutting-down")}
    assert orders(world) == []


# --- starting ------------------------------------------------------------------------------


async def test_what_is_stopped_is_started_on_its_node(world: World, owner: Owner) -> None:
    put(world, 1, "stopped", on="n2")
    world.node("n2").slow = True
    assert await owner.start(1) == {1: ("stopped", "pending")}
    assert world.state(1) == "pending"
    world.node("n2").hold(report(1, state="running"))
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "running"
    assert {node for node, _ in orders(world)} == {"n2"}


async def test_starting_what_starts_or_runs_changes_nothing(world: World, owner: Owner) -> None:
    put(world, 1, "pending")
    put(world, 2, "running")
    assert await owner.start(1, 2) == {1: ("pending", "pending"), 2: ("running", "running")}
    assert ("n1", "Start") not in orders(world)


async def test_a_full_node_starts_nothing_and_is_named_with_its_zone(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopped")
    world.node("n1").room = {}
    with pytest.raises(InsufficientInstanceCapacity) as error:
        await owner.start(1)
    assert f"{instance_id(1)} on node n1 in us-east-1" in error.value.message
    assert world.state(1) == "stopped"
    assert world.node("n2").states() == {}, "it is not started elsewhere"


async def test_a_start_without_an_answer_may_be_repeated_and_leaves_the_record(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopped")
    world.node("n1").silent = True
    with pytest.raises(ServiceUnavailable) as error:
        await owner.start(1)
    assert "node n1 in us-east-1" in error.value.message
    assert world.state(1) == "stopped"
    world.node("n1").silent = False
    assert await owner.start(1) == {1: ("stopped", "running")}


async def test_a_start_whose_answer_was_lost_is_corrected_by_reconcile(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopped")
    world.node("n1").garbled = True
    with pytest.raises(ServiceUnavailable):
        await owner.start(1)
    assert world.state(1) == "stopped"
    world.node("n1").garbled = False
    await world.run()
    assert world.state(1) == "running"


async def test_what_a_node_has_started_stays_so_when_another_cannot(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopped")
    put(world, 2, "stopped", on="n2")
    world.node("n1").room = {}
    with pytest.raises(InsufficientInstanceCapacity) as error:
        await owner.start(1, 2)
    assert f"These were started: {instance_id(2)}." in error.value.message
    assert (world.state(1), world.state(2)) == ("stopped", "running")
    world.node("n1").room = {"t3.medium": 1}
    assert await owner.start(1, 2) == {1: ("stopped", "running"), 2: ("running", "running")}


async def test_a_node_that_has_lost_the_instance_is_no_lack_of_capacity(
    world: World, owner: Owner
) -> None:
    world.place(1, "n1", state="stopped")
    with pytest.raises(InternalError, match=f"No longer on its node: {instance_id(1)}"):
        await owner.start(1)


async def test_an_instance_that_has_stopped_meanwhile_is_started(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopping", really="stopped")
    assert await owner.start(1) == {1: ("stopped", "running")}


async def test_what_a_node_says_of_an_older_attempt_is_not_written_down(
    world: World, owner: Owner
) -> None:
    world.place(1, "n1", state="stopping", attempt=2)
    world.node("n1").hold(report(1, attempt=1, state="terminated"))
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "stopping"


async def test_what_the_node_knows_better_is_written_down(world: World, owner: Owner) -> None:
    put(world, 1, "stopped", really="terminated")
    with pytest.raises(IncorrectInstanceState):
        await owner.start(1)
    assert world.state(1) == "terminated"


# --- rebooting -----------------------------------------------------------------------------


async def test_what_runs_is_rebooted_and_what_has_ended_is_passed_over(
    world: World, owner: Owner
) -> None:
    put(world, 1, "running")
    put(world, 2, "terminated")
    assert await owner.name("RebootInstances", 1, 2) == {"Return": True}
    assert world.nodes.orders == [("n1", "Reboot", (instance_id(1),))]
    assert world.state(1) == "running"


async def test_a_reboot_without_an_answer_is_told(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    put(world, 2, "running", on="n2")
    world.node("n1").silent = True
    with pytest.raises(ServiceUnavailable) as error:
        await owner.name("RebootInstances", 1, 2)
    assert f"These were rebooted: {instance_id(2)}." in error.value.message


async def test_a_reboot_of_what_has_stopped_by_itself_is_refused_and_its_state_is_known_then(
    world: World, owner: Owner
) -> None:
    put(world, 1, "running", really="stopped")
    with pytest.raises(IncorrectInstanceState):
        await owner.name("RebootInstances", 1)
    assert world.state(1) == "stopped"


# --- what is checked before anything is done -----------------------------------------------


@pytest.mark.parametrize(
    ("action", "state", "message"),
    [
        ("StartInstances", "stopping", "is not in a state from which it can be started."),
        ("StartInstances", "shutting-down", "is not in a state from which it can be started."),
        ("StartInstances", "terminated", "is not in a state from which it can be started."),
        ("StopInstances", "pending", "cannot be stopped as it has never reached the 'running'"),
        ("StopInstances", "shutting-down", "is not in a state from which it can be stopped."),
        ("StopInstances", "terminated", "is not in a state from which it can be stopped."),
        ("RebootInstances", "pending", "is not in a state from which it can be rebooted."),
        ("RebootInstances", "stopping", "is not in a state from which it can be rebooted."),
        ("RebootInstances", "stopped", "is not in a state from which it can be rebooted."),
    ],
)
async def test_the_wrong_state_of_one_is_refused_in_ec2s_words_and_nothing_is_done_to_another(
    world: World, owner: Owner, action: str, state: InstanceState, message: str
) -> None:
    put(world, 1, state)
    right: InstanceState = "stopped" if action == "StartInstances" else "running"
    put(world, 2, right, on="n2")
    world.node("n1").slow = True
    with pytest.raises(IncorrectInstanceState) as error:
        await owner.name(action, 2, 1)
    assert f"'{instance_id(1)}' {message}" in error.value.message
    assert (world.state(2), world.node("n2").states()) == (right, {instance_id(2): right})
    assert ("n2", action.removesuffix("Instances")) not in orders(world)


async def test_all_in_the_wrong_state_are_named(world: World, owner: Owner) -> None:
    put(world, 1, "terminated")
    put(world, 2, "terminated")
    with pytest.raises(IncorrectInstanceState) as error:
        await owner.start(1, 2)
    names = f"{instance_id(1)}, {instance_id(2)}"
    assert error.value.message == (
        f"The instances '{names}' are not in a state from which they can be started."
    )


async def test_what_has_been_stopped_before_is_not_said_never_to_have_run(
    world: World, owner: Owner
) -> None:
    put(world, 1, "running")
    await owner.stop(1)
    world.node("n1").slow = True
    await owner.start(1)
    with pytest.raises(IncorrectInstanceState, match="state from which it can be stopped"):
        await owner.stop(1)


@pytest.mark.parametrize(
    ("action", "state"), [("StopInstances", "pending"), ("StartInstances", "stopping")]
)
async def test_a_state_that_a_silent_node_may_have_left_is_no_ground_for_a_refusal(
    world: World, owner: Owner, action: str, state: InstanceState
) -> None:
    put(world, 1, state)
    world.node("n1").silent = True
    with pytest.raises(ServiceUnavailable, match="No answer from node n1"):
        await owner.name(action, 1)
    assert world.state(1) == state


@pytest.mark.parametrize("action", ["StartInstances", "StopInstances"])
async def test_what_is_to_end_is_refused_whether_its_node_answers_or_not(
    world: World, owner: Owner, action: str
) -> None:
    put(world, 1, "shutting-down")
    world.node("n1").silent = True
    with pytest.raises(IncorrectInstanceState):
        await owner.name(action, 1)


@pytest.mark.parametrize("action", ACTIONS)
async def test_an_instance_that_has_no_place_yet_is_in_no_state_for_it(
    world: World, owner: Owner, action: str
) -> None:
    world.begin(1)
    with pytest.raises(IncorrectInstanceState):
        await owner.name(action, 1)
    answer = await owner.name("TerminateInstances", 1)
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_request_that_names_what_is_not_there_does_nothing(
    world: World, owner: Owner, action: str
) -> None:
    put(world, 1, "stopped" if action == "StartInstances" else "running")
    for ids, kind in (
        ([], MissingParameter),
        ([instance_id(1), "i-1"], InvalidInstanceIDMalformed),
        ([instance_id(1), instance_id(9)], InvalidInstanceIDNotFound),
    ):
        with pytest.raises(kind):
            await owner.call(action, InstanceIds=ids)
    with pytest.raises(InvalidInstanceIDNotFound):
        await Owner(world, account_id="999999999999").name(action, 1)
    with pytest.raises(DryRunOperation):
        await owner.name(action, 1, DryRun=True)
    assert orders(world) == []


async def test_a_dry_run_says_that_the_state_is_wrong(world: World, owner: Owner) -> None:
    put(world, 1, "terminated")
    with pytest.raises(IncorrectInstanceState):
        await owner.start(1, DryRun=True)


async def test_an_instance_named_twice_is_answered_once(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    assert await owner.stop(1, 1) == {1: ("running", "stopped")}
    assert world.nodes.orders == [("n1", "Stop", (instance_id(1),))]


# --- terminating ---------------------------------------------------------------------------


async def test_a_termination_is_shutting_down_until_its_node_has_said_otherwise(
    world: World, owner: Owner
) -> None:
    put(world, 1, "stopped")
    world.node("n1").silent = True
    for _ in range(2):  # it may be repeated
        answer = await owner.name("TerminateInstances", 1, Force=True)
        assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "shutting-down"
    shown = (await owner.described())[instance_id(1)]
    assert shown["State"]["Name"] == "shutting-down"
    assert shown["StateTransitionReason"].startswith("User initiated (20")
    world.node("n1").silent = False
    assert (await owner.described())[instance_id(1)]["State"]["Name"] == "terminated"
    with pytest.raises(EC2Error):
        await owner.start(1)
