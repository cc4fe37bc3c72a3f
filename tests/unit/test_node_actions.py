"""What a node or a region is asked: answered when full, silent when it can't be sure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import msgspec
import pytest

from fleetcast import __version__, messages
from fleetcast.agent.entries import Entry
from fleetcast.capacity import Resources
from fleetcast.subjects import NodeAction, RegionAction, node_subject, region_subject
from tests.agent_parts import (
    NOW_MS,
    Delivered,
    a_guest,
    a_launch,
    attempt_request,
    instance_id,
    launch_id,
    make_journal_refuse,
    unit_node,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.messages import Message
    from tests.agent_parts import UnitNode

# A NATS server's default.
_NATS_MAX_PAYLOAD_BYTES = 1_048_576
_ASKED_BY_OPERATORS = {NodeAction.CORDON, NodeAction.DRAIN, NodeAction.UNCORDON}
_REGION_REQUEST = messages.encode(messages.RegionRequest())


def _to_node(action: NodeAction, message: Message, *, reply: str = "_INBOX.r") -> Delivered:
    return Delivered(messages.encode(message), subject=node_subject("r", "n1", action), reply=reply)


def _to_region(action: RegionAction, payload: bytes = _REGION_REQUEST) -> Delivered:
    return Delivered(payload, subject=region_subject("r", action))


def _instances(*numbers: int) -> messages.InstancesRequest:
    return messages.InstancesRequest(instance_ids=tuple(instance_id(one) for one in numbers))


def _reports(request: Delivered) -> dict[str, str]:
    (answer,) = request.answers
    reply = messages.decode(answer, messages.InstancesReply)
    assert reply.node == "n1"
    return {report.instance_id: report.state for report in reply.instances}


async def _load(node: UnitNode) -> messages.NodeLoad:
    request = _to_region(RegionAction.DESCRIBE_CAPACITY)
    await node.actions.answer_region(request)
    load = messages.decode(request.answers[0], messages.CapacityReply).load
    assert isinstance(load, messages.NodeLoad)
    return load


async def test_describe_reports_what_is_held_and_leaves_out_the_rest(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        await node.guests.idle()
        request = _to_node(NodeAction.DESCRIBE, _instances(1, 9, 1))
        await node.actions.answer_node(request)
        assert _reports(request) == {instance_id(1): "running"}


async def test_terminate_answers_that_it_has_begun(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        request = _to_node(NodeAction.TERMINATE, _instances(1, 9))
        await node.actions.answer_node(request)
        assert _reports(request) == {instance_id(1): "shutting-down"}


async def test_terminate_is_carried_out_even_if_nobody_waits(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.actions.answer_node(_to_node(NodeAction.TERMINATE, _instances(1), reply=""))
        await node.guests.idle()
        assert node.state_of(1) == "terminated"


async def test_a_termination_that_was_not_written_is_not_confirmed(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        request = _to_node(NodeAction.TERMINATE, _instances(1))
        await node.actions.answer_node(request)
        assert request.answers == []


async def test_the_inventory_names_every_instance(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2, 3))
        await node.guests.idle()
        await node.owner_actions.terminate([instance_id(1)])
        await node.guests.idle()
        request = _to_region(RegionAction.INVENTORY)
        await node.actions.answer_region(request)
        assert _reports(request) == {
            instance_id(1): "terminated",
            instance_id(2): "running",
            instance_id(3): "running",
        }


async def test_an_inventory_says_whose_where_and_what_is_held(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2, hold_ms=1_000))
        await node.guests.idle()
        request = _to_region(RegionAction.INVENTORY)
        await node.actions.answer_region(request)
        reply = messages.decode(request.answers[0], messages.InstancesReply)
        assert reply.zone == "z1"
        assert [one.account_id for one in reply.instances] == ["000000000000"] * 2
        assert [one.held is True for one in reply.instances] == [False, True]


async def test_an_inventory_leaves_out_what_ended_more_than_an_hour_ago(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        await node.guests.idle()
        await node.owner_actions.terminate([instance_id(1)])
        await node.guests.idle()
        node.now_s += 3_600
        still = _to_region(RegionAction.INVENTORY)
        await node.actions.answer_region(still)
        assert _reports(still) == {instance_id(1): "terminated", instance_id(2): "running"}
        node.now_s += 1
        no_more = _to_region(RegionAction.INVENTORY)
        await node.actions.answer_region(no_more)
        assert _reports(no_more) == {instance_id(2): "running"}


async def test_an_inventory_fits_into_a_message_however_many_have_ended(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        for number in range(2, 10_002):
            ended = Entry(
                guest=a_guest(number),
                state="terminated",
                changed_at_s=node.now_s - 3_000 + number / 10,
                state_reason_code="Client.UserInitiatedShutdown",
                state_reason_message="User initiated shutdown",
            )
            node.instances.note(ended)
        request = _to_region(RegionAction.INVENTORY)
        await node.actions.answer_region(request)
        assert len(request.answers[0]) < _NATS_MAX_PAYLOAD_BYTES
        reports = _reports(request)
        assert instance_id(1) in reports
        assert instance_id(10_001) in reports  # what ended last is told
        assert instance_id(2) not in reports


async def test_a_hold_is_committed_located_and_cancelled_over_the_wire(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2, hold_ms=1_000))
        commit = _to_node(NodeAction.COMMIT, attempt_request(1))
        await node.actions.answer_node(commit)
        assert _reports(commit) == {instance_id(1): "pending"}
        await node.guests.idle()
        wanted = messages.encode(messages.LocateRequest(launch_id=launch_id(1)))
        locate = _to_region(RegionAction.LOCATE_LAUNCH, wanted)
        await node.actions.answer_region(locate)
        assert _reports(locate) == {instance_id(1): "running", instance_id(2): "pending"}
        cancelled = messages.encode(attempt_request(1, 2, 3))
        cancel = _to_region(RegionAction.CANCEL_LAUNCH, cancelled)
        await node.actions.answer_region(cancel)
        assert _reports(cancel) == {instance_id(1): "shutting-down", instance_id(2): "terminated"}


async def test_who_holds_nothing_of_a_launch_says_so(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        wanted = messages.encode(messages.LocateRequest(launch_id=launch_id(1)))
        for action, payload in (
            (RegionAction.LOCATE_LAUNCH, wanted),
            (RegionAction.CANCEL_LAUNCH, messages.encode(attempt_request(1))),
        ):
            request = _to_region(action, payload)
            await node.actions.answer_region(request)
            assert _reports(request) == {}
        release = _to_node(NodeAction.RELEASE, attempt_request(1))
        await node.actions.answer_node(release)
        assert _reports(release) == {}


async def test_a_late_order_is_not_answered(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        late = attempt_request(1, expires_at_ms=NOW_MS)
        for action in (NodeAction.COMMIT, NodeAction.RELEASE):
            request = _to_node(action, late)
            await node.actions.answer_node(request)
            assert request.answers == []
        cancel = _to_region(RegionAction.CANCEL_LAUNCH, messages.encode(late))
        await node.actions.answer_region(cancel)
        assert cancel.answers == []


async def test_what_an_owner_asks_is_answered_with_what_was_refused(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        for action, state, refused in (
            (NodeAction.REBOOT, "running", msgspec.UNSET),
            (NodeAction.START, "running", msgspec.UNSET),
            (NodeAction.STOP, "stopping", msgspec.UNSET),
            (NodeAction.REBOOT, "stopped", {instance_id(1): "state"}),
            (NodeAction.START, "pending", msgspec.UNSET),
        ):
            request = _to_node(action, _instances(1))
            await node.actions.answer_node(request)
            reply = messages.decode(request.answers[0], messages.InstancesReply)
            assert [one.state for one in reply.instances] == [state], action
            assert reply.refused == refused
            await node.guests.idle()


async def test_the_console_is_told_with_its_age(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2, hold_ms=1_000))
        await node.guests.idle()
        replies = []
        for number in (1, 2, 9):
            request = _to_node(NodeAction.GET_CONSOLE_OUTPUT, _instances(number))
            await node.actions.answer_node(request)
            replies.append(messages.decode(request.answers[0], messages.ConsoleReply))
        of_guest, of_held, of_nobody = replies
        assert b"booted" in base64.b64decode(of_guest.output_base64 or "")
        assert of_guest.written_at_ms is not None
        assert (of_held.output_base64, of_held.written_at_ms) == ("", None)
        assert (of_nobody.output_base64, of_nobody.written_at_ms) == (None, None)


async def test_the_console_of_several_at_once_is_not_understood(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        request = _to_node(NodeAction.GET_CONSOLE_OUTPUT, _instances(1, 2))
        await node.actions.answer_node(request)
        assert request.answers == []


async def test_what_a_node_serves_is_told_apart_from_what_has_room(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        request = _to_region(RegionAction.DESCRIBE_INSTANCE_TYPES)
        await node.actions.answer_region(request)
        reply = messages.decode(request.answers[0], messages.InstanceTypesReply)
        assert (reply.node, reply.zone) == ("n1", "z1")
        assert set(reply.instance_types) == {"t3.medium", "t3.xlarge", "t3.2xlarge"}
        assert reply.room == {"t3.medium": 3, "t3.xlarge": 1}


async def test_a_capacity_report_names_the_agents_version_and_clock(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        request = _to_region(RegionAction.DESCRIBE_CAPACITY)
        await node.actions.answer_region(request)
        reply = messages.decode(request.answers[0], messages.CapacityReply)
        assert (reply.version, reply.now_ms) == (__version__, NOW_MS)


async def test_capacity_is_reported_as_admission_sees_it(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        request = _to_region(RegionAction.DESCRIBE_CAPACITY)
        await node.actions.answer_region(request)
        reply = messages.decode(request.answers[0], messages.CapacityReply)
        assert reply.total == Resources(vcpu=8, memory_mib=32_768)
        assert reply.free == Resources(vcpu=6, memory_mib=28_672)
        assert reply.room == {"t3.medium": 3, "t3.xlarge": 1}
        assert reply.closed is None


async def test_load_counts_what_runs_and_is_measured_now_and_then(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2, 3))
        await node.guests.idle()
        await node.owner_actions.terminate([instance_id(1)])
        await node.guests.idle()
        before = await _load(node)
        node.host_load.sample()
        after = await _load(node)
        assert before == messages.NodeLoad(running_instances=2, disk_utilization=None)
        assert after.running_instances == 2
        assert after.gpu_utilization is None
        assert after.cpu_utilization is not None
        assert after.memory_utilization is not None
        assert 0 <= after.cpu_utilization <= 100
        assert 0 < after.memory_utilization < 100
        assert isinstance(after.disk_utilization, float)
        assert 0 < after.disk_utilization <= 100


async def test_a_closed_node_says_why_and_has_no_room(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        node.ledger.close("stopping")
        request = _to_region(RegionAction.DESCRIBE_CAPACITY)
        await node.actions.answer_region(request)
        reply = messages.decode(request.answers[0], messages.CapacityReply)
        assert (reply.closed, reply.room) == ("stopping", {})


async def test_an_action_on_one_node_cannot_be_asked_of_a_whole_region(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        request = _to_region(RegionAction.INVENTORY, messages.encode(_instances(1)))
        request.subject = "ec2.region.r.Terminate"
        await node.actions.answer_region(request)
        await node.guests.idle()
        assert request.answers == []
        assert node.state_of(1) == "running"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b'{"v":2,"instance_ids":[]}',
        b'{"v":1}',
        b'{"v":1,"instance_ids":["../../etc/passwd"]}',
        b'{"v":1,"instance_ids":["i-12345678\\n"]}',
        b'{"v":1,"x":' + b"[" * 100_000,
    ],
)
async def test_what_is_not_understood_is_not_answered(tmp_path: Path, payload: bytes) -> None:
    async with unit_node(tmp_path) as node:
        for action in set(NodeAction) - _ASKED_BY_OPERATORS:
            request = Delivered(payload, subject=node_subject("r", "n1", action))
            await node.actions.answer_node(request)
            assert request.answers == []


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"v":2}', b'{"v":1'])
async def test_an_order_of_operators_that_is_not_understood_changes_nothing(
    tmp_path: Path, payload: bytes
) -> None:
    async with unit_node(tmp_path) as node:
        for action in _ASKED_BY_OPERATORS:
            request = Delivered(payload, subject=node_subject("r", "n1", action))
            await node.actions.answer_node(request)
            assert request.answers == []
        assert node.ledger.closed is None


async def test_an_action_of_a_newer_version_is_not_answered(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        unknown = Delivered(b'{"v":1,"instance_ids":[]}', subject="ec2.node.r.n1.Hibernate")
        await node.actions.answer_node(unknown)
        also_unknown = Delivered(_REGION_REQUEST, subject="ec2.region.r.Hibernate")
        await node.actions.answer_region(also_unknown)
        assert unknown.answers == also_unknown.answers == []
