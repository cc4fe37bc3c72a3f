"""Reconcile over a table in moto and scripted nodes, minute by minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from lambdas.batch_reads import TableBusy
from lambdas.live_index import region_partition
from lambdas.reconcile.table import ReconcileTable
from tests.captured_logs import captured_logs
from tests.reconciled_world import (
    EU,
    MINUTE_S,
    NOW_S,
    US,
    World,
    a_world,
    assert_tidied,
    make_a_mess,
)
from tests.scripted_nodes import ACCOUNT, Node, instance_id, launch_id, report
from tests.tables import FLEET, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.messages import InstanceState

DAY_S = 86_400.0


@pytest.fixture
def world() -> Iterator[World]:
    with tables(FLEET) as dynamodb:
        yield a_world(dynamodb)


# --- nodes ---------------------------------------------------------------------------------


async def test_what_nodes_say_is_kept(world: World) -> None:
    world.place(1, "n1")
    world.node("n1").hold(report(1), report(2, state="terminated"))
    world.node("n1").clock_ahead_s = -2
    await world.run()
    asked_s = world.nodes.now_s
    await world.run()
    nodes = {one.node: one for one in world.fleet.nodes(US)}
    assert nodes.keys() == {"n1", "n2", "n3"}
    seen = nodes["n1"]
    assert (seen.zone, seen.closed, seen.version) == ("z1", None, "1.0")
    assert (seen.last_seen_s, seen.instances_n) == (asked_s, 1)
    assert seen.room == {"t3.medium": 4}
    assert seen.total is not None
    assert seen.total.vcpu == 8
    assert seen.clock_skew_ms is not None
    assert -2100 <= seen.clock_skew_ms <= -1000  # the wait for the others is the inaccuracy


async def test_once_all_known_nodes_have_answered_nobody_is_waited_for(world: World) -> None:
    await world.run()
    world.nodes.gathers.clear()
    summary = await world.run()
    assert sorted(world.nodes.gathers) == [
        ("DescribeCapacity", None),
        ("DescribeCapacity", None),
        ("Inventory", 1),
        ("Inventory", 3),
    ]
    assert [region.silent_nodes_n for region in summary.regions] == [0, 0]


async def test_a_new_node_is_heard_at_once_also_when_its_answer_comes_last(world: World) -> None:
    await world.run()
    world.nodes.regions[US]["n4"] = Node("n4")
    world.place(1, "n1")
    world.node("n1").hold(report(1))
    world.node("n4").hold(report(1))
    await world.run()
    assert world.node("n4").holds == {}
    assert "n4" in {one.node for one in world.fleet.nodes(US)}


async def test_a_node_is_forgotten_after_a_day_of_silence_unless_it_has_instances(
    world: World,
) -> None:
    world.place(1, "n1")
    world.node("n1").hold(report(1))
    await world.run()
    for name in ("n1", "n2"):
        world.node(name).silent = True
    world.nodes.now_s = NOW_S + DAY_S - MINUTE_S
    await world.run()
    assert {one.node for one in world.fleet.nodes(US)} == {"n1", "n2", "n3"}
    world.nodes.now_s = NOW_S + DAY_S
    await world.run()
    assert {one.node for one in world.fleet.nodes(US)} == {"n1", "n3"}


async def test_an_older_run_does_not_overwrite_what_a_newer_one_has_heard(world: World) -> None:
    await world.run()
    (newer,) = world.fleet.nodes(EU)
    table = ReconcileTable(world.dynamodb, FLEET)
    assert not table.put_node(msgspec.structs.replace(newer, last_seen_s=NOW_S - 1, room={}))
    assert not table.forget_node(msgspec.structs.replace(newer, last_seen_s=NOW_S - 1))
    assert world.fleet.nodes(EU) == [newer]


# --- instances on record -------------------------------------------------------------------


async def test_records_follow_what_runs(world: World) -> None:
    before: tuple[InstanceState, ...] = ("pending", "running", "stopping", "shutting-down")
    for number, state in enumerate(before, start=1):
        world.place(number, "n1", state=state)
    world.node("n1").hold(
        report(1),
        report(2, state="stopped"),
        report(3, state="stopped"),
        report(4, state="terminated"),
    )
    await world.run()
    assert [*world.states().values()] == ["running", "stopped", "stopped", "terminated"]
    assert world.nodes.orders == []


async def test_what_was_to_end_or_stop_is_told_so_until_it_has(world: World) -> None:
    world.place(1, "n1", state="shutting-down")
    world.place(2, "n1", state="stopping")
    world.node("n1").hold(report(1), report(2))
    summary = await world.run()
    assert sorted(action for _, action, _ in world.nodes.orders) == ["Stop", "Terminate"]
    assert summary.regions[0].orphans_destroyed_n == 0
    await world.run()
    assert [*world.states().values()] == ["terminated", "stopped"]


async def test_an_instance_that_its_node_has_lost_is_closed_with_the_reason(world: World) -> None:
    world.place(1, "n1")
    summary = await world.run()
    (record,) = world.records().values()
    assert record.state == "terminated"
    assert record.state_reason_code == "Server.InternalError"
    assert "n1 no longer holds" in (record.state_reason_message or "")
    assert record.terminated_at_s is not None
    assert summary.regions[0].records_closed_n == 1


async def test_an_instance_of_a_silent_node_is_unknown_and_never_terminated(world: World) -> None:
    world.place(1, "n1")
    world.place(2, "n1", state="shutting-down")
    world.node("n1").hold(report(1), report(2))
    world.node("n1").silent = True
    first = await world.run()
    assert first.regions[0].unknown_instances_n == 2
    marked = {one.unreachable_since_s for one in world.records().values()}
    assert marked == {NOW_S}
    world.nodes.now_s += DAY_S
    await world.run()
    assert {one.unreachable_since_s for one in world.records().values()} == marked
    assert [*world.states().values()] == ["running", "shutting-down"]

    world.node("n1").silent = False
    back = await world.run()
    assert back.regions[0].unknown_instances_n == 0
    assert {one.unreachable_since_s for one in world.records().values()} == {None}


@pytest.mark.parametrize("how", ["nobody listens", "cut off", "all silent"])
async def test_a_region_without_an_answer_leaves_all_its_instances_unknown(
    world: World, how: str
) -> None:
    world.place(1, "n1")
    world.place(2, "m1", region=EU)
    world.node("m1").hold(report(2))
    world.node("n1").hold(report(1))
    await world.run()
    match how:
        case "nobody listens":
            world.nodes.regions[US].clear()
        case "cut off":
            world.nodes.cut_off.add(US)
        case "all silent":
            for node in world.nodes.regions[US].values():
                node.silent = True
    summary = await world.run()
    assert not summary.errors
    assert [one.unknown_instances_n for one in summary.regions] == [1, 0]
    assert [one.silent_nodes_n for one in summary.regions] == [3, 0]
    assert [*world.states().values()] == ["running", "running"]


# --- instances that should not be there ----------------------------------------------------


async def test_a_second_holder_of_an_instance_gives_it_up_in_the_same_run(world: World) -> None:
    world.place(1, "n1", attempt=2)
    for name in ("n2", "m1"):
        world.node(name).hold(report(1))
    world.node("n1").hold(report(1, attempt=2))
    summary = await world.run()
    assert [name for name in ("n1", "n2", "m1") if world.node(name).holds] == ["n1"]
    assert [one.orphans_destroyed_n for one in summary.regions] == [1, 1]
    assert world.state(1) == "running"


async def test_an_instance_that_was_terminated_is_terminated_where_it_still_runs(
    world: World,
) -> None:
    world.place(1, "n1", state="shutting-down")
    await world.run()  # n1 hasn't got it
    assert world.state(1) == "terminated"
    world.node("n1").hold(report(1))
    summary = await world.run()
    assert world.node("n1").states() == {instance_id(1): "terminated"}
    assert summary.regions[0].orphans_destroyed_n == 1


async def test_an_instance_without_a_record_is_destroyed_when_it_is_seen_again(
    world: World,
) -> None:
    world.node("n1").hold(report(1))
    await world.run()
    assert world.node("n1").holds
    summary = await world.run()
    assert not world.node("n1").holds
    assert world.nodes.orders == [("n1", "Release", (instance_id(1),))]
    assert summary.regions[0].orphans_destroyed_n == 1


async def test_an_instance_that_was_not_seen_in_between_begins_anew(world: World) -> None:
    world.node("n1").hold(report(1))
    await world.run()
    world.node("n1").holds.clear()
    await world.run()
    world.node("n1").hold(report(1))
    await world.run()
    assert world.node("n1").holds


async def test_two_runs_at_once_are_one_sighting(world: World) -> None:
    world.node("n1").hold(report(1))
    await asyncio.gather(world.run(), world.run())
    world.nodes.now_s = NOW_S + 10
    await world.run()
    assert world.nodes.orders == []


async def test_a_table_that_is_lost_destroys_no_fleet(world: World) -> None:
    world.node("n1").hold(*(report(number) for number in range(11)))
    with captured_logs("lambdas.reconcile") as lines:
        for _ in range(3):
            summary = await world.run()
    assert len(world.node("n1").holds) == 11
    assert summary.regions[0].orphans_held_back_n == 11
    assert lines.fields("orphans held back: has the table been lost?")


async def test_an_instance_of_which_nobody_says_whose_it_is_is_left_alone(world: World) -> None:
    world.node("n1").hold(report(1, account_id=msgspec.UNSET))
    with captured_logs("lambdas.reconcile") as lines:
        await world.run()
        await world.run()
    assert world.node("n1").holds
    assert lines.fields("instance of nobody")


# --- launches that their functions have left -----------------------------------------------


async def test_a_launch_at_which_its_function_may_be_is_left_alone(world: World) -> None:
    world.begin(1, undecided_until_s=NOW_S + 2 * MINUTE_S)
    world.node("n1").hold(report(1))
    await world.run()
    await world.run()
    assert world.node("n1").holds
    reservation = world.fleet.launches.read(ACCOUNT, launch_id(1))
    assert reservation
    assert reservation.state == "placing"


async def test_a_launch_that_its_function_left_becomes_what_the_nodes_hold(world: World) -> None:
    world.begin(1)
    world.node("n2").hold(report(1))
    world.begin(2)
    await world.run()
    assert world.state(1) == "pending"
    assert (await world.run()).launches_resolved_n == 2
    await world.run()
    assert world.state(1) == "running"
    assert world.records()[instance_id(1)].node == "n2"
    assert world.state(2) is None
    for number, state in ((1, "placed"), (2, "refused")):
        reservation = world.fleet.launches.read(ACCOUNT, launch_id(number))
        assert reservation
        assert reservation.state == state


async def test_a_launch_stays_unknown_as_long_as_a_known_node_is_silent(world: World) -> None:
    await world.run()
    world.begin(1)
    world.node("n1").silent = True
    world.nodes.now_s += MINUTE_S
    summary = await world.run()
    assert summary.undecided_launches_n == 1
    assert world.state(1) == "pending"
    world.node("n1").silent = False
    assert (await world.run()).launches_resolved_n == 1
    assert world.state(1) is None


async def test_a_launch_that_is_decided_while_it_is_looked_up_keeps_the_place_it_was_given(
    world: World,
) -> None:
    """A large launch is written down in parts, and its function may die between two of them."""
    record = world.begin(1, undecided_until_s=NOW_S + MINUTE_S)
    reservation = world.fleet.launches.read(ACCOUNT, launch_id(1))
    assert reservation
    world.dynamodb.update_item(
        TableName=FLEET,
        Key={"pk": {"S": f"ACCOUNT#{ACCOUNT}"}, "sk": {"S": f"INSTANCE#{record.instance_id}"}},
        UpdateExpression="SET #region = :region, #node = :node, live_pk = :live",
        ExpressionAttributeNames={"#region": "region", "#node": "node"},
        ExpressionAttributeValues={
            ":region": {"S": US},
            ":node": {"S": "n1"},
            ":live": {"S": region_partition(US)},
        },
    )
    world.node("n1").hold(report(1, state="pending"))
    world.node("n2").hold(report(1, attempt=2, state="pending"))
    decided: list[bool] = []

    def decide_otherwise(**_: object) -> None:
        if not decided:
            decided.append(True)
            at_n2 = msgspec.structs.replace(record, region=US, node="n2", attempt=2)
            placed = msgspec.structs.replace(reservation, state="placed", region=US)
            world.fleet.launches.place(placed, [at_n2])

    events: Any = world.dynamodb.meta.events
    events.register("after-call.dynamodb.BatchGetItem", decide_otherwise)
    await world.run()
    assert decided
    await world.run()
    assert [name for name in ("n1", "n2") if world.node(name).holds] == ["n2"]
    assert world.state(1) == "pending"


# --- whatever happens in between -----------------------------------------------------------


async def test_two_runs_tidy_everything(world: World) -> None:
    make_a_mess(world)
    for _ in range(3):
        assert not (await world.run()).errors
    assert_tidied(world)


async def test_two_reconciles_at_once_do_what_one_does(world: World) -> None:
    make_a_mess(world)
    for _ in range(3):
        summaries = await asyncio.gather(world.run(), world.run())
        assert [summary.errors for summary in summaries] == [[], []]
        world.nodes.now_s -= MINUTE_S  # both let a minute pass
    assert_tidied(world)


class Died(BaseException):
    """The process is gone."""


async def test_a_reconcile_that_dies_between_any_two_steps_does_no_harm() -> None:
    steps_n = 0
    died = True
    while died:
        steps_n += 1
        with tables(FLEET) as dynamodb:
            world = a_world(dynamodb)
            make_a_mess(world)
            died = await _dies_at(world, steps_n)
            for _ in range(3):
                assert not (await world.run()).errors, steps_n
            assert_tidied(world)
    assert steps_n > 20


async def _dies_at(world: World, last_step: int) -> bool:
    """Run, and die before that call of DynamoDB or of a node. Return whether it came so far."""
    calls_n = 0

    def step(**_: object) -> None:
        nonlocal calls_n
        calls_n += 1
        if calls_n >= last_step:
            raise Died

    events: Any = world.dynamodb.meta.events
    events.register("before-call.dynamodb", step)
    world.nodes.before_call = step
    try:
        await world.run()
    except Died:
        world.nodes.now_s += MINUTE_S
        return True
    finally:
        events.unregister("before-call.dynamodb", step)
        world.nodes.before_call = lambda: None
    return False


@pytest.mark.parametrize(
    "operation", ["UpdateItem", "PutItem", "DeleteItem", "BatchGetItem", "Query"]
)
async def test_what_dynamodb_refuses_keeps_nothing_else_from_being_done(
    world: World, operation: str
) -> None:
    make_a_mess(world)
    refusals_n = 0

    def refuse_once(**_: object) -> None:
        nonlocal refusals_n
        refusals_n += 1
        if refusals_n == 1:
            raise ClientError({"Error": {"Code": "ThrottlingException"}}, operation)

    events: Any = world.dynamodb.meta.events
    events.register(f"before-call.dynamodb.{operation}", refuse_once)
    summary = await world.run()
    assert [type(error) for error in summary.errors] == [ClientError]
    assert refusals_n > 1 or operation == "DeleteItem"
    for _ in range(2):
        assert not (await world.run()).errors
    assert_tidied(world)


async def test_what_dynamodb_never_reads_is_told(world: World) -> None:
    world.place(1, "n1")

    def read_nothing(params: dict[str, Any], **_: object) -> tuple[Any, dict[str, Any]]:
        del params
        keys = [{"pk": {"S": "ACCOUNT#1"}, "sk": {"S": "INSTANCE#1"}}]
        unread = {FLEET: {"Keys": keys}}

        class Ok:
            status_code = 200

        return Ok(), {"Responses": {FLEET: []}, "UnprocessedKeys": unread}

    events: Any = world.dynamodb.meta.events
    events.register("before-call.dynamodb.BatchGetItem", read_nothing)
    summary = await world.run()
    assert [type(error) for error in summary.errors] == [TableBusy]
    assert world.state(1) == "running"
