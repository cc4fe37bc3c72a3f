"""Regions that answer launches by a script, for what has to ask them.

What nodes hold, give up and commit, they keep as a real node does: by instance and attempt, with
fences. Time is the script's own: waiting moves it on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast import messages
from fleetcast.subjects import NodeAction, RegionAction, action_of, node_subject, region_subject
from lambdas.bus import NoAnswer, NoResponders, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True)
class Accept:
    """A node with this much room takes what fits."""

    node: str
    room: int


@dataclass(frozen=True)
class Lost:
    """A node takes what fits, and its reply is lost."""

    node: str
    room: int


@dataclass(frozen=True)
class Late:
    """A node gets the request when its caller no longer waits, but nobody has cancelled it yet."""

    node: str
    room: int


Answer = Accept | Lost | Late | str  # text: the outcome of that name, or a reply itself

OUTCOMES: Final = ("full", "node_fault", "client_fault", "no_responders", "unreachable")


@dataclass(frozen=True)
class Held:
    """What a node holds. held: it waits for Commit."""

    launch_id: str
    attempt: int
    held: bool


@dataclass
class Fleet:
    """Regions whose nodes answer launches as scripted, and then that nobody listens.

    holding: what each node holds, whatever their requester knows of it. deaf: nodes whose answers
    get lost, and that hear nothing but launches. mute: regions where nothing but launches is heard.
    lapsing: nodes whose holds have lapsed when Commit comes. ended: all that has booted has ended
    by itself. empty_until: until when no agent of a region is connected, by the script's clock.
    asked: the launches asked for, as (region, answer).
    """

    scripts: Mapping[str, Iterable[Answer]]
    deaf: frozenset[str] = frozenset()
    mute: frozenset[str] = frozenset()
    lapsing: frozenset[str] = frozenset()
    holding: dict[str, dict[str, Held]] = field(default_factory=lambda: defaultdict(dict))
    fences: dict[tuple[str, str], int] = field(default_factory=dict)
    asked: list[tuple[str, Answer]] = field(default_factory=list)
    subjects: list[str] = field(default_factory=list)
    headers: list[messages.LaunchHeaders] = field(default_factory=list)
    now_s: float = 100.0
    started_n: int = 0
    ended: bool = False
    empty_until: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scripts = {region: iter(answers) for region, answers in self.scripts.items()}
        self._region_of: dict[str, str] = {}
        self._late: list[tuple[str, messages.LaunchHeaders, messages.LaunchRequest, Late]] = []

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def known_nodes(self, region: str) -> frozenset[str]:
        """Return the nodes of a region that have ever held something, deaf ones too."""
        return frozenset(node for node, at in self._region_of.items() if at == region)

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        self.subjects.append(subject)
        self.now_s += 0.001
        if headers is None and subject.startswith("ec2.region."):
            return self._ask_anybody(region, timeout_s)
        if headers is None:
            return self._ask_node(region, subject, payload, timeout_s)
        self.headers.append(messages.LaunchHeaders.decode(headers()))
        request = messages.decode(payload, messages.LaunchRequest)
        answer = next(self._scripts[region], "no_responders")
        self.asked.append((region, answer))
        if isinstance(answer, str):
            return self._scripted(region, answer, timeout_s)
        self._region_of[answer.node] = region
        if isinstance(answer, Late):
            self._late.append((region, self.headers[-1], request, answer))
            return self._scripted(region, "no_answer", timeout_s)
        taken = self._take(answer, self.headers[-1], request)
        if isinstance(answer, Lost) or not taken:
            outcome = "no_answer" if isinstance(answer, Lost) else "full"
            return self._scripted(region, outcome, timeout_s)
        return messages.encode(
            messages.Accepted(node=answer.node, zone=None, instance_ids=tuple(taken))
        )

    async def gather(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        expected: int | None = None,
    ) -> list[bytes]:
        self.subjects.append(subject)
        self.now_s += 0.001
        action = action_of(subject)
        assert subject == region_subject(region, RegionAction(action))
        nodes = [node for node in sorted(self.known_nodes(region)) if node not in self.deaf]
        if region in self.mute or not nodes:
            self.now_s += timeout_s
            raise NoAnswer(region, "no answer")
        if expected is None or len(nodes) < expected:
            self.now_s += timeout_s
        replies = [self._region_reply(node, action, payload) for node in nodes]
        if action == RegionAction.LOCATE_LAUNCH:
            for _, late_headers, request, answer in self._late:
                self._take(answer, late_headers, request)
            self._late.clear()
        return [messages.encode(reply) for reply in replies]

    # --- nodes -----------------------------------------------------------------------------

    def _take(
        self,
        answer: Accept | Lost | Late,
        headers: messages.LaunchHeaders,
        request: messages.LaunchRequest,
    ) -> list[str]:
        held = isinstance(request.hold_ms, int)
        here = self.holding[answer.node]
        taken: list[str] = []
        for instance in request.instances:
            instance_id = instance.instance_id
            fence = self.fences.get((answer.node, instance_id), 0)
            if len(taken) == answer.room or fence >= headers.attempt:
                continue
            taken.append(instance_id)
            here[instance_id] = Held(headers.launch_id, headers.attempt, held)
            self.started_n += not held
        return taken

    def _ask_anybody(self, region: str, timeout_s: float) -> bytes:
        if region in self.mute:
            self.now_s += timeout_s
            raise NoAnswer(region, "no answer")
        if self.now_s < self.empty_until.get(region, 0):
            raise NoResponders(region, "nobody listens")
        return messages.encode(messages.InstancesReply(node="any", instances=()))

    def _ask_node(self, region: str, subject: str, payload: bytes, timeout_s: float) -> bytes:
        node = subject.split(".")[3]
        action = NodeAction(action_of(subject))
        assert subject == node_subject(region, node, action)
        if node in self.deaf:
            self.now_s += timeout_s
            raise NoAnswer(region, "no answer")
        here = self.holding[node]
        if action is NodeAction.TERMINATE:
            for instance_id in messages.decode(payload, messages.InstancesRequest).instance_ids:
                here.pop(instance_id, None)
            return messages.encode(messages.InstancesReply(node=node, instances=()))
        request = messages.decode(payload, messages.AttemptRequest)
        if action is NodeAction.RELEASE:
            self._give_up(node, request)
            return messages.encode(messages.InstancesReply(node=node, instances=()))
        assert action is NodeAction.COMMIT
        if node in self.lapsing:
            for instance_id in request.instance_ids:
                here.pop(instance_id, None)
        for instance_id in request.instance_ids:
            held = here.get(instance_id)
            if held and held.held and held.attempt == request.attempt:
                here[instance_id] = Held(held.launch_id, held.attempt, held=False)
                self.started_n += 1
        return messages.encode(self._report(node, request.launch_id))

    def _region_reply(self, node: str, action: str, payload: bytes) -> messages.InstancesReply:
        match action:
            case RegionAction.LOCATE_LAUNCH:
                located = messages.decode(payload, messages.LocateRequest)
                return self._report(node, located.launch_id)
            case RegionAction.CANCEL_LAUNCH:
                self._give_up(node, messages.decode(payload, messages.AttemptRequest))
                return messages.InstancesReply(node=node, instances=())
        raise AssertionError(action)

    def _give_up(self, node: str, request: messages.AttemptRequest) -> None:
        for instance_id in request.instance_ids:
            held = self.holding[node].get(instance_id)
            if held and held.attempt <= request.attempt:
                del self.holding[node][instance_id]
            fence = self.fences.get((node, instance_id), 0)
            self.fences[node, instance_id] = max(fence, request.attempt)

    def _report(self, node: str, launch_id: str) -> messages.InstancesReply:
        return messages.InstancesReply(
            node=node,
            zone=None,
            instances=tuple(
                messages.InstanceReport(
                    instance_id=instance_id,
                    launch_id=held.launch_id,
                    attempt=held.attempt,
                    instance_type="t3.medium",
                    state="terminated" if self.ended else "pending",
                    held=True if held.held else msgspec.UNSET,
                )
                for instance_id, held in self.holding[node].items()
                if held.launch_id == launch_id
            ),
        )

    def _scripted(self, region: str, answer: str, timeout_s: float) -> bytes:
        match answer:
            case "no_responders":
                raise NoResponders(
                    region, "nobody listens", heard_lately=region not in self.empty_until
                )
            case "unreachable":
                raise Unreachable(region, "can't connect to NATS")
            case "no_answer":
                self.now_s += timeout_s
                raise NoAnswer(region, "no answer")
            case "full" | "node_fault" | "client_fault":
                return messages.encode(
                    messages.Rejected(
                        node="n1", reason=answer, code="InvalidAMIID.NotFound", message="so it is"
                    )
                )
        return answer.encode()

    # --- seen from outside -----------------------------------------------------------------

    def runs(self) -> dict[str, set[str]]:
        """Return what boots or runs, by node."""
        return self._by_node(held=False)

    def holds(self) -> dict[str, set[str]]:
        """Return all that is held, by node: what runs, and what waits for Commit."""
        return {
            node: ids
            for node in self.holding
            if (
                ids := self._by_node(held=False).get(node, set())
                | self._by_node(held=True).get(node, set())
            )
        }

    def _by_node(self, *, held: bool) -> dict[str, set[str]]:
        nodes = {
            node: {one for one, what in here.items() if what.held is held}
            for node, here in self.holding.items()
        }
        return {node: ids for node, ids in nodes.items() if ids}
