"""What reconcile decides: the table in docs/launch-protocol, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.messages import InstanceState
from fleetcast.subjects import NodeAction
from lambdas.launch_table import Reservation
from lambdas.reconcile.decisions import (
    STRAY_AFTER_S,
    Decision,
    Order,
    Sighting,
    Stray,
    Write,
    compare,
    decide,
    decide_lost,
    due_strays,
    is_table_lost,
)
from lambdas.reconcile.table import LiveInstance
from lambdas.records import InstanceRecord, NodeRecord
from tests.scripted_nodes import ACCOUNT, instance_id, launch_id, report

if TYPE_CHECKING:
    from fleetcast.messages import InstanceReport

NOW_S = 1_700_000_000.0
REGION = "us-east-1"
ID = instance_id(1)
STATES: tuple[InstanceState, ...] = get_args(InstanceState)


def a_record(**changed: Any) -> InstanceRecord:  # noqa: ANN401 - a test names what differs
    fields: dict[str, Any] = {
        "account_id": ACCOUNT,
        "reservation_id": launch_id(1),
        "instance_id": ID,
        "instance_type": "t3.medium",
        "image_id": "ami-00000001",
        "architecture": "x86_64",
        "launch_index": 0,
        "launched_at_s": NOW_S,
        "state": "running",
        "region": REGION,
        "node": "n1",
    }
    return InstanceRecord(**(fields | changed))


def a_reservation(state: str) -> Reservation:
    return Reservation(
        account_id=ACCOUNT,
        reservation_id=launch_id(1),
        instance_type="t3.medium",
        launched_at_s=NOW_S,
        instance_ids=(ID,),
        state=state,  # type: ignore[arg-type] # a test's parameter
        undecided_until_s=NOW_S + 25,
    )


def indexed(record: InstanceRecord) -> LiveInstance:
    return LiveInstance(
        account_id=record.account_id,
        instance_id=record.instance_id,
        reservation_id=record.reservation_id,
        node=record.node or "",
        attempt=record.attempt,
        state=record.state,
        unreachable_since_s=record.unreachable_since_s,
    )


def decided(
    held: InstanceReport,
    record: InstanceRecord | None,
    *,
    node: str = "n1",
    known: LiveInstance | None = None,
    reservation: str | None = None,
) -> Decision | None:
    if known is None and record is not None and record.node == node:
        known = indexed(record)
    return decide(
        Sighting(node=node, report=held, known=known),
        record,
        a_reservation(reservation) if reservation else None,
        region=REGION,
        now_s=NOW_S,
    )


def action_of(decision: Decision | None) -> str | None:
    return decision.action.value if isinstance(decision, Order) else None


# --- comparing -----------------------------------------------------------------------------


def test_what_is_as_it_is_recorded_does_not_stand_out() -> None:
    compared = compare([indexed(a_record())], {"n1": {ID: report(1)}})
    assert (compared.sightings, compared.lost, compared.silent, compared.back) == ((), (), (), ())


def test_what_stands_out_is_looked_up() -> None:
    live = [indexed(a_record(state="pending"))]
    moved_on = compare(live, {"n1": {ID: report(1)}})
    assert [one.known for one in moved_on.sightings] == live
    elsewhere = compare(live, {"n1": {ID: report(1, state="pending")}, "n2": {ID: report(1)}})
    assert [(one.node, one.known) for one in elsewhere.sightings] == [("n2", None)]


def test_only_a_node_that_has_answered_can_have_lost_an_instance() -> None:
    live = [indexed(a_record(unreachable_since_s=NOW_S - 60))]
    answered = compare(live, {"n1": {}})
    assert (answered.lost, answered.silent, answered.back) == (tuple(live), (), tuple(live))
    silent = compare(live, {"n2": {}})
    assert (silent.lost, silent.silent, silent.back) == ((), tuple(live), ())


@pytest.mark.parametrize("state", ["shutting-down", "terminated"])
def test_what_has_ended_on_a_node_without_a_record_there_is_nobodys_business(
    state: InstanceState,
) -> None:
    assert compare([], {"n1": {ID: report(1, state=state)}}).sightings == ()


def test_a_hold_lapses_by_itself() -> None:
    held = report(1, state="pending", held=True)
    assert compare([], {"n1": {ID: held}}).sightings == ()
    assert compare([indexed(a_record())], {"n1": {ID: held}}).sightings == ()
    assert decided(held, a_record(), node="n2") is None


# --- held, and on record -------------------------------------------------------------------


def test_a_state_that_has_moved_on_is_written_down_with_its_reason() -> None:
    ended = report(
        1,
        state="terminated",
        state_reason_code="Client.InstanceInitiatedShutdown",
        state_reason_message="Instance initiated shutdown",
    )
    decision = decided(ended, a_record())
    assert isinstance(decision, Write)
    assert decision.after == a_record(
        state="terminated",
        terminated_at_s=NOW_S,
        state_reason_code="Client.InstanceInitiatedShutdown",
        state_reason_message="Client.InstanceInitiatedShutdown: Instance initiated shutdown",
    )


@pytest.mark.parametrize(
    ("recorded", "held", "written"),
    [
        ("pending", "running", True),
        ("running", "stopped", True),
        ("stopping", "stopped", True),
        ("stopped", "running", True),
        ("shutting-down", "terminated", True),
        ("running", "pending", False),
        ("shutting-down", "shutting-down", False),
    ],
)
def test_a_state_is_only_moved_on_as_ec2_has_it(
    recorded: InstanceState, held: InstanceState, *, written: bool
) -> None:
    decision = decided(report(1, state=held), a_record(state=recorded))
    assert isinstance(decision, Write) is written


def test_a_record_that_moved_while_the_node_was_asked_is_left_to_the_next_run() -> None:
    before = indexed(a_record(state="stopped"))
    record = a_record(state="pending")
    assert decided(report(1, state="stopped"), record, known=before) is None


def test_an_instance_whose_end_or_stop_was_wished_is_told_so_again() -> None:
    assert action_of(decided(report(1), a_record(state="shutting-down"))) == "Terminate"
    assert action_of(decided(report(1), a_record(state="stopping"))) == "Stop"


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_an_instance_that_runs_after_its_end_is_terminated_wherever_it_is(node: str) -> None:
    decision = decided(report(1), a_record(state="terminated"), node=node)
    assert isinstance(decision, Order)
    assert (decision.action, decision.surplus) == (NodeAction.TERMINATE, True)


@pytest.mark.parametrize(
    ("node", "region", "attempt"),
    [("n2", REGION, 1), ("n2", REGION, 9), ("n1", "eu-west-1", 2), ("n1", REGION, 1)],
)
def test_a_second_holder_and_an_older_attempt_give_it_up(
    node: str, region: str, attempt: int
) -> None:
    record = a_record(region=region, attempt=2)
    decision = decided(report(1, attempt=attempt), record, node=node)
    assert isinstance(decision, Order)
    assert (decision.action, decision.surplus) == (NodeAction.RELEASE, True)


@given(
    st.builds(
        a_record,
        state=st.sampled_from(STATES),
        attempt=st.integers(1, 3),
        node=st.sampled_from(["n1", "n2", None]),
    ),
    st.builds(report, st.just(1), attempt=st.integers(1, 3), state=st.sampled_from(STATES)),
    st.sampled_from(["n1", "n2"]),
)
def test_an_instance_that_lives_where_its_record_says_is_never_destroyed(
    record: InstanceRecord, held: InstanceReport, node: str
) -> None:
    decision = decided(held, record, node=node)
    if (
        record.node == node
        and held.attempt == record.attempt
        and record.state
        in {
            "pending",
            "running",
            "stopping",
            "stopped",
        }
    ):
        assert action_of(decision) in {None, "Stop"}
    if record.node is None:
        assert decision is None


# --- held, and not on record ---------------------------------------------------------------


@pytest.mark.parametrize("state", ["placing", "unknown"])
def test_an_instance_of_an_undecided_launch_is_left_alone(state: str) -> None:
    assert decided(report(1), None, reservation=state) is None
    assert decided(report(1), a_record(node=None, region=None), reservation=state) is None
    # A large launch is written down in parts, and who resolves it may choose another holder.
    assert decided(report(1), a_record(node="n1"), node="n2", reservation=state) is None
    lost = a_record()
    assert decide_lost(indexed(lost), lost, a_reservation(state), now_s=NOW_S) is None


def test_an_instance_whose_launch_has_been_forgotten_is_as_one_of_a_decided_launch() -> None:
    assert action_of(decided(report(1), a_record(node="n1"), node="n2")) == "Release"
    lost = a_record()
    assert decide_lost(indexed(lost), lost, None, now_s=NOW_S) is not None


@pytest.mark.parametrize("state", [None, "refused", "placed"])
def test_an_instance_without_a_record_is_a_stray(state: str | None) -> None:
    assert isinstance(decided(report(1), None, reservation=state), Stray)


def test_a_stray_is_due_when_an_earlier_run_has_seen_it_on_the_same_node() -> None:
    stray = Stray(sighting=Sighting(node="n1", report=report(1), known=None))

    def due(node: str, first_seen_s: float) -> bool:
        seen = NodeRecord(
            region=REGION, node=node, last_seen_s=first_seen_s, strays={ID: first_seen_s}
        )
        return due_strays([stray], {node: seen}, now_s=NOW_S) == [stray]

    assert due("n1", NOW_S - STRAY_AFTER_S)
    assert not due("n1", NOW_S - STRAY_AFTER_S + 1)  # of a run at the same time
    assert not due("n2", NOW_S - STRAY_AFTER_S)
    assert due_strays([stray], {}, now_s=NOW_S) == []


@pytest.mark.parametrize(
    ("strays_n", "held_n", "lost"), [(10, 10, False), (11, 22, False), (11, 21, True)]
)
def test_a_table_is_lost_when_more_than_ten_and_than_half_of_a_region_are_strays(
    strays_n: int, held_n: int, *, lost: bool
) -> None:
    assert is_table_lost(strays_n=strays_n, held_n=held_n) is lost


# --- on record, and not held ---------------------------------------------------------------


def test_an_instance_that_its_node_does_not_hold_is_closed_with_the_reason() -> None:
    record = a_record()
    write = decide_lost(indexed(record), record, a_reservation("placed"), now_s=NOW_S)
    assert write is not None
    assert write.after == a_record(
        state="terminated",
        terminated_at_s=NOW_S,
        state_reason_code="Server.InternalError",
        state_reason_message="Server.InternalError: node n1 no longer holds the instance",
    )


def test_an_instance_that_was_to_go_keeps_the_reason_of_its_owner() -> None:
    record = a_record(state="shutting-down", state_reason_code="Client.UserInitiatedShutdown")
    write = decide_lost(indexed(record), record, a_reservation("placed"), now_s=NOW_S)
    assert write is not None
    assert write.after == msgspec.structs.replace(record, state="terminated", terminated_at_s=NOW_S)


@pytest.mark.parametrize(
    "now_recorded", [None, {"attempt": 2}, {"node": "n2"}, {"state": "terminated"}]
)
def test_a_record_that_is_another_by_now_is_not_closed(
    now_recorded: dict[str, Any] | None,
) -> None:
    record = None if now_recorded is None else a_record(**now_recorded)
    assert decide_lost(indexed(a_record()), record, None, now_s=NOW_S) is None
