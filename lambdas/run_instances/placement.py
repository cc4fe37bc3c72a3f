"""The walk: asks region after region until one has launched what was wanted.

Owns what an answer means for a launch. Decides only; asking is an argument. What each answer
leads to, and never to anything else:

    accepted           record it; more to place? ask the same subject again
    rejected: full     a lost race: ask the same subject again, at once
    rejected: client   every node would say so: stop, with that EC2 error
    rejected: node     this node can't: ask again, a few times, then leave the region
    no responders      nobody in this region has room: the next region
    unreachable        the region could not be asked: the next region, but never "no capacity"
    no answer          unknown: it may have been launched, so nothing else is tried
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from fleetcast import messages
from fleetcast.errors import (
    FleetcastError,
    InsufficientInstanceCapacity,
    InvalidMessage,
    InvalidSubjectToken,
    RefusedByNode,
    ServiceUnavailable,
)
from fleetcast.subjects import NodeAction, check_node, launch_subject, node_subject
from lambdas.bus import NoAnswer, NoResponders, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MAX_NODE_FAULTS: Final = 3
_RELEASE_TIMEOUT_S: Final = 1.0
_CLIENT_SIDE_SLACK_S: Final = 0.05

Outcome = Literal[
    "accepted",
    "full",
    "client_fault",
    "node_fault",
    "no_responders",
    "unreachable",
    "no_answer",
]


class Asker(Protocol):
    """Sends a request to a region: lambdas.bus.Bus.ask."""

    async def __call__(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        """Return the reply. headers: makes them when the request leaves.

        Raises NoResponders, Unreachable or NoAnswer.
        """


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A launch to place. template: the request without instances, the same for every ask.

    instances: max_count of them. deadline_s: when the answer must be known, on the clock.
    """

    launch_id: str
    template: messages.LaunchRequest
    instances: tuple[messages.InstanceToLaunch, ...]
    min_count: int
    zone: str | None
    deadline_s: float


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where one instance is. attempt: the fencing number under which the node holds it."""

    instance_id: str
    region: str
    zone: str | None
    node: str
    attempt: int


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One question of the walk and its answer, for whoever wants to know why."""

    region: str
    subject: str
    outcome: Outcome
    node: str | None
    milliseconds: float
    detail: str = ""


class UnknownOutcome(FleetcastError):
    """A region gave no answer: the launch may have happened there."""

    def __init__(self, region: str, why: str) -> None:
        self.region = region
        super().__init__(f"region {region}: {why}")


class Walk:
    """One launch's walk over the regions.

    asks and placed tell what happened and what is held where, also after an error.

    ask: sends a request. clock_s: monotonic seconds. now_ms: epoch milliseconds.
    accept_timeout_s: how long an agent has to accept; the request expires then.
    """

    def __init__(
        self,
        wanted: Wanted,
        *,
        ask: Asker,
        clock_s: Callable[[], float],
        now_ms: Callable[[], int],
        accept_timeout_s: float,
    ) -> None:
        self.asks: list[Ask] = []
        self.placed: list[Placed] = []
        self._wanted = wanted
        self._ask = ask
        self._clock_s = clock_s
        self._now_ms = now_ms
        self._accept_timeout_s = accept_timeout_s
        self._attempt = 1

    async def place(self, regions: Sequence[str]) -> list[Placed]:
        """Return at least min_count placed instances, all in one region.

        Raises InsufficientInstanceCapacity only if every region has said that nobody there has
        room; ServiceUnavailable if one could not be asked; UnknownOutcome if one may have
        launched; the EC2 error of a request that no node would take.
        """
        unasked: dict[str, str] = {}
        for region in regions:
            why_unasked = await self._fill(region)
            if len(self.placed) >= self._wanted.min_count:
                return self.placed
            if why_unasked:
                unasked[region] = why_unasked
            await self._release()
        raise self._refusal(regions, unasked)

    # --- one region ------------------------------------------------------------------------

    async def _fill(self, region: str) -> str:
        """Place as many as the region takes. Return why it could not be asked, or ""."""
        left = {instance.instance_id: instance for instance in self._wanted.instances}
        node_faults = 0
        while left:
            # An ask that is cut short would only make an unknown outcome.
            if self._wanted.deadline_s - self._clock_s() < self._accept_timeout_s:
                return "the time for this launch ran out"
            answer = await self._ask_once(region, tuple(left.values()))
            match answer:
                case messages.Accepted():
                    self._keep(region, answer, left)
                case messages.Rejected(reason="full"):
                    continue
                case messages.Rejected(reason="client_fault"):
                    await self._release()
                    raise RefusedByNode(answer.code, answer.message)
                case messages.Rejected():
                    node_faults += 1
                    if node_faults == _MAX_NODE_FAULTS:
                        return f"its nodes fail: {answer.message}"
                case NoResponders():
                    return ""
                case Unreachable():
                    return answer.why
        return ""

    async def _ask_once(
        self,
        region: str,
        instances: tuple[messages.InstanceToLaunch, ...],
    ) -> messages.LaunchReply | NoResponders | Unreachable:
        """Ask one agent of the region. Raises UnknownOutcome."""
        subject = launch_subject(region, self._wanted.template.instance_type, self._wanted.zone)
        request = msgspec.structs.replace(self._wanted.template, instances=instances)
        began_s = self._clock_s()
        try:
            payload = await self._ask(
                region,
                subject,
                messages.encode(request),
                timeout_s=self._accept_timeout_s + _CLIENT_SIDE_SLACK_S,
                headers=self._headers,
            )
            reply = messages.decode_launch_reply(payload)
            _check_accepted(reply, instances)
        except NoResponders as error:
            self._note(region, subject, "no_responders", began_s)
            return error
        except Unreachable as error:
            self._note(region, subject, "unreachable", began_s, detail=error.why)
            return error
        except (NoAnswer, InvalidMessage, InvalidSubjectToken) as error:
            # A reply that makes no sense may be an acceptance.
            why = error.why if isinstance(error, NoAnswer) else str(error)
            self._note(region, subject, "no_answer", began_s, detail=why)
            raise UnknownOutcome(region, why) from error
        outcome: Outcome = "accepted" if isinstance(reply, messages.Accepted) else reply.reason
        detail = "" if isinstance(reply, messages.Accepted) else reply.message
        self._note(region, subject, outcome, began_s, node=reply.node, detail=detail)
        return reply

    def _headers(self) -> dict[str, str]:
        return messages.LaunchHeaders(
            launch_id=self._wanted.launch_id,
            attempt=self._attempt,
            expires_at_ms=self._now_ms() + int(self._accept_timeout_s * 1000),
        ).encode()

    def _keep(
        self,
        region: str,
        accepted: messages.Accepted,
        left: dict[str, messages.InstanceToLaunch],
    ) -> None:
        for instance_id in accepted.instance_ids:
            del left[instance_id]
            self.placed.append(
                Placed(
                    instance_id=instance_id,
                    region=region,
                    zone=accepted.zone,
                    node=accepted.node,
                    attempt=self._attempt,
                )
            )

    async def _release(self) -> None:
        """Give up what is held of a launch that won't be made in this region.

        Raises UnknownOutcome if a node doesn't confirm: its instances may go on running.
        """
        ids_by_node: dict[tuple[str, str], list[str]] = {}
        for one in self.placed:
            ids_by_node.setdefault((one.region, one.node), []).append(one.instance_id)
        # Each is asked, whatever another one says: nothing may be left behind that needn't be.
        failures = await asyncio.gather(
            *(self._give_up(region, node, ids) for (region, node), ids in ids_by_node.items())
        )
        for failure in filter(None, failures):
            raise failure
        if self.placed:
            self.placed.clear()
            self._attempt += 1  # what was held must never count again

    async def _give_up(
        self, region: str, node: str, instance_ids: Sequence[str]
    ) -> UnknownOutcome | None:
        request = messages.InstancesRequest(instance_ids=tuple(instance_ids))
        try:
            payload = await self._ask(
                region,
                node_subject(region, node, NodeAction.TERMINATE),
                messages.encode(request),
                timeout_s=_RELEASE_TIMEOUT_S,
            )
            messages.decode(payload, messages.InstancesReply)
        except (NoResponders, Unreachable, NoAnswer, InvalidMessage) as error:
            held = ", ".join(instance_ids)
            return UnknownOutcome(region, f"node {node} did not confirm giving up {held}: {error}")
        return None

    # --- the end ---------------------------------------------------------------------------

    def _refusal(self, regions: Sequence[str], unasked: dict[str, str]) -> FleetcastError:
        instance_type = self._wanted.template.instance_type
        if unasked:
            reasons = "; ".join(f"{region}: {why}" for region, why in unasked.items())
            return ServiceUnavailable(
                f"Could not find out whether there is capacity for {instance_type}: {reasons}. "
                "Retry with the same ClientToken."
            )
        where = f" in zone {self._wanted.zone}" if self._wanted.zone else ""
        return InsufficientInstanceCapacity(
            f"No node has room for {self._wanted.min_count} x {instance_type}{where} now; "
            f"asked: {', '.join(regions)}."
        )

    def _note(
        self,
        region: str,
        subject: str,
        outcome: Outcome,
        began_s: float,
        *,
        node: str | None = None,
        detail: str = "",
    ) -> None:
        self.asks.append(
            Ask(
                region=region,
                subject=subject,
                outcome=outcome,
                node=node,
                milliseconds=round((self._clock_s() - began_s) * 1000, 1),
                detail=detail,
            )
        )


def _check_accepted(
    reply: messages.LaunchReply,
    instances: Sequence[messages.InstanceToLaunch],
) -> None:
    """Refuse an acceptance of nothing, of an instance twice, or of one that wasn't asked for.

    Raises InvalidMessage, and InvalidSubjectToken if the node could not be asked to give them up.
    """
    if isinstance(reply, messages.Accepted):
        check_node(reply.node)
        accepted = set(reply.instance_ids)
        asked = {instance.instance_id for instance in instances}
        if not accepted or len(accepted) < len(reply.instance_ids) or not accepted <= asked:
            raise InvalidMessage(f"node {reply.node} accepted other instances than it was asked")
