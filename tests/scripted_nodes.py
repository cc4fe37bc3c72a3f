"""Nodes that hold what a test gives them and do as they are told, for who asks them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from fleetcast import messages
from fleetcast.capacity import Resources
from fleetcast.subjects import NodeAction, RegionAction, node_subject, region_subject
from lambdas.bus import NoAnswer, NoResponders, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleetcast.messages import InstanceReport, InstanceState

ACCOUNT = "000000000000"
CONSOLE_WRITTEN_AT_MS = 1_600_000_000_000
EIGHT_VCPU = Resources(vcpu=8, memory_mib=32_768)


def report(
    number: int,
    *,
    attempt: int = 1,
    state: InstanceState = "running",
    **changed: Any,  # noqa: ANN401
) -> InstanceReport:
    """Return what a node says of the only instance of the launch of that number."""
    fields: dict[str, Any] = {
        "instance_id": instance_id(number),
        "launch_id": launch_id(number),
        "attempt": attempt,
        "instance_type": "t3.medium",
        "state": state,
        "account_id": ACCOUNT,
    }
    return messages.InstanceReport(**(fields | changed))


def instance_id(number: int) -> str:
    return f"i-{number:017x}"


def launch_id(number: int) -> str:
    return f"r-{number:017x}"


class _Deed(NamedTuple):
    """What a node does with an instance that it is told to move, as an agent does."""

    moves_from: frozenset[InstanceState]
    done_in: frozenset[InstanceState]
    while_at_it: InstanceState
    to: InstanceState


_DEEDS: Final = {
    NodeAction.START: _Deed(
        frozenset({"stopped"}), frozenset({"pending", "running"}), "pending", "running"
    ),
    NodeAction.STOP: _Deed(
        frozenset({"running"}), frozenset({"stopping", "stopped"}), "stopping", "stopped"
    ),
    NodeAction.REBOOT: _Deed(frozenset({"running"}), frozenset(), "running", "running"),
    NodeAction.TERMINATE: _Deed(
        frozenset({"pending", "running", "stopping", "stopped", "shutting-down"}),
        frozenset({"terminated"}),
        "shutting-down",
        "terminated",
    ),
}


@dataclass
class Node:
    """One node.

    silent: it answers nothing. garbled: its answers make no sense. slow: what it is told to do it
    only begins. clock_ahead_s: of everybody else's. room: how many more instances of each type
    fit, started ones too. serves: types. consoles: base64, by instance.
    """

    name: str
    holds: dict[str, InstanceReport] = field(default_factory=dict)
    silent: bool = False
    garbled: bool = False
    slow: bool = False
    clock_ahead_s: float = 0.0
    room: dict[str, int] = field(default_factory=lambda: {"t3.medium": 4})
    serves: tuple[str, ...] = ("t3.medium",)
    consoles: dict[str, str] = field(default_factory=dict)

    def hold(self, *reports: InstanceReport) -> None:
        self.holds |= {one.instance_id: one for one in reports}

    def states(self) -> dict[str, str]:
        return {one.instance_id: one.state for one in self.holds.values()}


@dataclass
class ScriptedNodes:
    """Regions of such nodes, as a bus. orders: (node, action, instance ids), as they came.

    cut_off: regions whose NATS can't be reached. before_call: called before every request.
    """

    regions: Mapping[str, dict[str, Node]]
    now_s: float
    cut_off: set[str] = field(default_factory=set)
    orders: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    gathers: list[tuple[str, int | None]] = field(default_factory=list)
    before_call: Callable[[], None] = lambda: None

    def node(self, name: str) -> Node:
        return next(nodes[name] for nodes in self.regions.values() if name in nodes)

    def clock_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    async def gather(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        expected: int | None = None,
    ) -> list[bytes]:
        self.before_call()
        await asyncio.sleep(0)  # somebody else's turn
        action = next(one for one in RegionAction if subject == region_subject(region, one))
        self.gathers.append((action.value, expected))
        nodes = self.regions[region]
        if region in self.cut_off:
            raise Unreachable(region, "can't connect to NATS")
        if not nodes:
            raise NoResponders(region, "nobody listens")
        answers = [
            b"?" if node.garbled else messages.encode(self._answer(node, action, payload))
            for node in nodes.values()
            if not node.silent
        ]
        if expected is None or len(answers) < expected:
            self.now_s += timeout_s
        if not answers:
            raise NoAnswer(region, "no answer")
        return answers[:expected]

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        assert headers is None
        self.before_call()
        await asyncio.sleep(0)
        name = subject.split(".")[3]
        action = NodeAction(subject.split(".")[4])
        assert subject == node_subject(region, name, action)
        node = self.regions[region].get(name)
        if node is None or region in self.cut_off:
            raise NoResponders(region, "nobody listens")
        if node.silent:
            self.now_s += timeout_s
            raise NoAnswer(region, "no answer")
        reply = messages.encode(self._obey(node, action, payload))
        return b"?" if node.garbled else reply

    # --- a node ----------------------------------------------------------------------------

    def _answer(self, node: Node, action: RegionAction, payload: bytes) -> messages.Message:
        match action:
            case RegionAction.INVENTORY:
                return _reply(node)
            case RegionAction.DESCRIBE_CAPACITY:
                return messages.CapacityReply(
                    node=node.name,
                    zone="z1",
                    closed=None,
                    total=EIGHT_VCPU,
                    free=EIGHT_VCPU,
                    room=node.room,
                    armed={},
                    version="1.0",
                    now_ms=round((self.now_s + node.clock_ahead_s) * 1000),
                )
            case RegionAction.DESCRIBE_INSTANCE_TYPES:
                return messages.InstanceTypesReply(
                    node=node.name, zone="z1", instance_types=node.serves, room=node.room
                )
            case RegionAction.LOCATE_LAUNCH:
                asked = messages.decode(payload, messages.LocateRequest)
                return _reply(node, launch_id=asked.launch_id)
            case RegionAction.CANCEL_LAUNCH:
                return _give_up(node, messages.decode(payload, messages.AttemptRequest))
        raise AssertionError(action)

    def _obey(self, node: Node, action: NodeAction, payload: bytes) -> messages.Message:
        if action is NodeAction.RELEASE:
            given_up = messages.decode(payload, messages.AttemptRequest)
            self.orders.append((node.name, action.value, given_up.instance_ids))
            return _give_up(node, given_up)
        ids = messages.decode(payload, messages.InstancesRequest).instance_ids
        self.orders.append((node.name, action.value, ids))
        held = [node.holds[one] for one in ids if one in node.holds]
        if action is NodeAction.GET_CONSOLE_OUTPUT:
            return messages.ConsoleReply(
                node=node.name,
                output_base64=node.consoles.get(ids[0], "") if held else None,
                written_at_ms=CONSOLE_WRITTEN_AT_MS if ids[0] in node.consoles else None,
            )
        refused = {}
        for one in held:
            if reason := _move(node, one, action):
                refused[one.instance_id] = reason
        return msgspec.structs.replace(_reply(node), refused=refused or msgspec.UNSET)


def _move(node: Node, one: InstanceReport, action: NodeAction) -> Literal["full", "state"] | None:
    """Do with an instance as the node is told, or return why not."""
    deed = _DEEDS.get(action)
    if deed is None or one.state in deed.done_in:
        return None
    if one.state not in deed.moves_from:
        return "state"
    if action is NodeAction.START:
        if not node.room.get(one.instance_type):
            return "full"
        node.room[one.instance_type] -= 1
    node.hold(msgspec.structs.replace(one, state=deed.while_at_it if node.slow else deed.to))
    return None


def _reply(node: Node, *, launch_id: str | None = None) -> messages.InstancesReply:
    held = [one for one in node.holds.values() if launch_id in {None, one.launch_id}]
    return messages.InstancesReply(node=node.name, zone="z1", instances=tuple(held))


def _give_up(node: Node, request: messages.AttemptRequest) -> messages.InstancesReply:
    for one in request.instance_ids:
        if one in node.holds and node.holds[one].attempt <= request.attempt:
            del node.holds[one]
    return messages.InstancesReply(node=node.name, instances=())
