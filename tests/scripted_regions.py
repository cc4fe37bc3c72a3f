"""Regions that answer launches by a script, for what has to ask them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleetcast import messages
from fleetcast.subjects import NodeAction, node_subject
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


Answer = Accept | Lost | str  # text: the outcome of that name, or a reply itself

OUTCOMES: Final = ("full", "node_fault", "client_fault", "no_responders", "unreachable")


@dataclass
class Fleet:
    """Regions whose nodes answer launches as scripted, and then that nobody listens.

    held: which instances are where, whatever their requester knows of it. deaf: nodes whose
    answers get lost. asked: the launches asked for, as (region, answer).
    """

    scripts: Mapping[str, Iterable[Answer]]
    deaf: frozenset[str] = frozenset()
    held: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    asked: list[tuple[str, Answer]] = field(default_factory=list)
    subjects: list[str] = field(default_factory=list)
    headers: list[messages.LaunchHeaders] = field(default_factory=list)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self._scripts = {region: iter(answers) for region, answers in self.scripts.items()}

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
        if headers is None:
            return self._terminate(region, subject, payload, timeout_s)
        self.headers.append(messages.LaunchHeaders.decode(headers()))
        request = messages.decode(payload, messages.LaunchRequest)
        answer = next(self._scripts[region], "no_responders")
        self.asked.append((region, answer))
        ids = tuple(instance.instance_id for instance in request.instances)
        if isinstance(answer, Lost):
            self.held[answer.node].update(ids[: answer.room])
            answer = "no_answer"
        if isinstance(answer, Accept):
            ids = ids[: answer.room]
            self.held[answer.node].update(ids)
            accepted = messages.Accepted(node=answer.node, zone=None, instance_ids=ids)
            return messages.encode(accepted)
        return self._scripted(region, answer, timeout_s)

    def _scripted(self, region: str, answer: str, timeout_s: float) -> bytes:
        match answer:
            case "no_responders":
                raise NoResponders(region, "nobody listens")
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

    def _terminate(self, region: str, subject: str, payload: bytes, timeout_s: float) -> bytes:
        node = subject.split(".")[3]
        assert subject == node_subject(region, node, NodeAction.TERMINATE)
        if node in self.deaf:
            self.now_s += timeout_s
            raise NoAnswer(region, "no answer")
        self.held[node] -= set(messages.decode(payload, messages.InstancesRequest).instance_ids)
        return messages.encode(messages.InstancesReply(node=node, instances=()))

    def holds(self) -> dict[str, set[str]]:
        return {node: ids for node, ids in self.held.items() if ids}
