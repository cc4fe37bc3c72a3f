"""One region's part of a walk: asks its nodes until all is placed, or nobody takes any more.

Owns what an answer means for a launch. What each leads to, and never to anything else (of several
requests side by side, what is unknown comes first, and nobody is there if all say so):

    accepted           keep it; more to place? ask the same subject again
    rejected: full     a lost race: ask the same subject again, at once
    rejected: client   every node would say so: stop, with that EC2 error
    rejected: node     this node can't: ask again, a few times, then leave the region
    no responders      nobody in this region has room: leave it; but where no agent at all is
                       connected, they may be on their way back: wait a little, ask again
    unreachable        the region could not be asked: leave it, but never as "no capacity"
    no answer          unknown: find out who has it; what nobody has is cancelled, and asked for
                       again under the next attempt once the request has expired everywhere

Source: docs/launch-protocol.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final, TypeAlias

from fleetcast import messages
from fleetcast.errors import RefusedByNode
from fleetcast.launch_story import AskOutcome, RegionEnd, shortened
from fleetcast.messages import CLOCK_SKEW_ALLOWANCE_MS
from lambdas.bus import NoResponders, Unreachable
from lambdas.claims import Placed
from lambdas.run_instances.launch_request import (
    HOLD_MS,
    LaunchAnswer,
    Unanswered,
    request_launch,
    subject_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from lambdas.claims import Claims, RegionBus
    from lambdas.run_instances.ask_log import AskLog
    from lambdas.run_instances.launch_request import Wanted

# What fails that often in a region is no accident: another one is tried.
_MAX_FAULTS_OF_A_NODE: Final = 3
_MAX_FAULTS: Final = 8
_MAX_UNANSWERED: Final = 3
# What it takes to find out who has it and have it cancelled, in a region whose server hangs.
_SETTLE_S: Final = 4.0
# Kept of a lease for committing what is held.
_COMMIT_S: Final = 5.0
# For agents to come back to a server that was restarted; they try each second at least.
_RECONNECTING_S: Final = 0.25
_RECONNECTING_WAITS: Final = 6
_FEW_NODES: Final = 3
_MAX_SIDE_BY_SIDE: Final = 8

_Left: TypeAlias = tuple[RegionEnd, str]
_Share: TypeAlias = tuple[messages.InstanceToLaunch, ...]


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What a walk asks with.

    claims: the launch's. clock_s: monotonic seconds. now_ms: epoch milliseconds. sleep: in
    seconds. accept_timeout_s: how long an agent has to accept; the request expires then.
    """

    bus: RegionBus
    claims: Claims
    clock_s: Callable[[], float]
    now_ms: Callable[[], int]
    sleep: Callable[[float], Awaitable[None]]
    accept_timeout_s: float


class RegionFill:
    """Fills one region with what a launch wants.

    placed: what is placed, or held, in it. attempt: the fencing number of the next request; it
    rises with each one that had no answer.
    """

    def __init__(
        self, wanted: Wanted, region: str, *, attempt: int, asking: Asking, log: AskLog
    ) -> None:
        self.placed: list[Placed] = []
        self.attempt = attempt
        self._wanted = wanted
        self._region = region
        self._asking = asking
        self._log = log
        self._left = {instance.instance_id: instance for instance in wanted.instances}
        self._node_takes_n = 0  # as the last one did; not known yet
        self._faults: Counter[str] = Counter()
        self._unanswered_n = 0
        self._waits_left = _RECONNECTING_WAITS
        self._ends_s = wanted.deadline_s
        if wanted.holds:
            lease_ends_s = asking.clock_s() + HOLD_MS / 1000
            self._ends_s = min(self._ends_s, lease_ends_s) - _COMMIT_S

    async def fill(self) -> _Left:
        """Place as many as the region takes. Return how that ended, and why.

        Raises RefusedByNode for a request that no node would take.
        """
        # An ask that is cut short would only make an unknown outcome.
        needed_s = self._asking.accept_timeout_s + _SETTLE_S
        while self._left:
            if self._ends_s - self._asking.clock_s() < needed_s:
                return "not_asked", "the time for this launch ran out"
            shares = self._shares()
            answers = (
                await asyncio.gather(*map(self._ask, shares))
                if len(shares) > 1
                else [await self._ask(shares[0])]  # which nearly all launches do, and once
            )
            left = await self._act_on(answers)
            if left is not None:
                return left
        return "placed", ""

    def _shares(self) -> list[_Share]:
        """Cut what is left into requests to make side by side: one for a few nodes, some for many.

        The nodes of a far region would not all be asked in time one after the other.
        """
        left = tuple(self._left.values())
        if not self._node_takes_n:
            return [left]
        nodes_n = ceil(len(left) / self._node_takes_n)
        shares_n = 1 if nodes_n <= _FEW_NODES else min(nodes_n, _MAX_SIDE_BY_SIDE)
        size = ceil(len(left) / shares_n)
        return [left[start : start + size] for start in range(0, len(left), size)]

    async def _ask(self, share: _Share) -> LaunchAnswer:
        began_s = self._asking.clock_s()
        answer = await request_launch(
            self._asking.bus,
            self._region,
            self._wanted,
            share,
            attempt=self.attempt,
            accept_timeout_s=self._asking.accept_timeout_s,
            now_ms=self._asking.now_ms,
        )
        outcome, node, detail = _told(answer)
        subject = subject_for(self._region, self._wanted)
        self._note(subject, outcome, began_s, len(share), node=node, detail=detail)
        return answer

    async def _act_on(self, answers: Sequence[LaunchAnswer]) -> _Left | None:
        """Do what answers lead to. Return how the region is left, or None: ask again."""
        accepted = [one for one in answers if isinstance(one, messages.Accepted)]
        for acceptance in accepted:
            self._keep(_accepted(self._region, acceptance, self.attempt))
        if accepted:
            self._node_takes_n = max(len(acceptance.instance_ids) for acceptance in accepted)
        if len(accepted) == len(answers):
            return None
        # Before all that the others lead to: what may have happened is to be known then.
        if silences := [one for one in answers if isinstance(one, Unanswered)]:
            last = max(silences, key=lambda one: one.expires_at_ms)
            if left := await self._act_on_silence(last):
                return left
        for one in answers:
            if isinstance(one, messages.Rejected) and (left := self._act_on_rejection(one)):
                return left
        return await self._act_on_absence(answers)

    def _act_on_rejection(self, rejected: messages.Rejected) -> _Left | None:
        match rejected.reason:
            case "full":
                return None
            case "client_fault":
                raise RefusedByNode(rejected.code, shortened(rejected.message))
            case "node_fault":
                self._faults[rejected.node] += 1
        at_this_node_n = self._faults[rejected.node]
        if at_this_node_n == _MAX_FAULTS_OF_A_NODE or self._faults.total() == _MAX_FAULTS:
            return "not_asked", f"its nodes fail: {rejected.message}"
        return None

    def _keep(self, placed: Iterable[Placed]) -> list[Placed]:
        """Count these as placed. Return those that are placed already, or were never wanted."""
        surplus: list[Placed] = []
        for one in placed:
            if self._left.pop(one.instance_id, None) is None:
                surplus.append(one)
            else:
                self.placed.append(one)
        return surplus

    async def _act_on_absence(self, answers: Sequence[LaunchAnswer]) -> _Left | None:
        absent = [one for one in answers if isinstance(one, NoResponders | Unreachable)]
        if len(absent) < len(answers):
            return None  # whoever has answered beside them: the region is asked again
        for one in absent:
            if isinstance(one, Unreachable):
                return "not_asked", one.why
        return await self._act_on_nobody(
            heard_lately=any(isinstance(one, NoResponders) and one.heard_lately for one in absent)
        )

    async def _act_on_nobody(self, *, heard_lately: bool) -> _Left | None:
        """Believe it when somebody is there to listen; a server just restarted has nobody yet."""
        claims = self._asking.claims
        if heard_lately or await claims.is_anybody_there(self._region):
            return "no_room", ""
        if self._waits_left == 0:
            return "not_asked", "none of its nodes is connected"
        self._waits_left -= 1
        await self._asking.sleep(_RECONNECTING_S)
        return None

    # --- no answer -------------------------------------------------------------------------

    async def _act_on_silence(self, unanswered: Unanswered) -> _Left | None:
        self._unanswered_n += 1
        heard_all = await self._settle(unanswered)
        # What nobody commits lapses by itself.
        if not heard_all and not self._wanted.holds:
            return "in_doubt", unanswered.why
        if not heard_all or self._unanswered_n == _MAX_UNANSWERED:
            return "not_asked", unanswered.why
        return None

    async def _settle(self, unanswered: Unanswered) -> bool:
        """Find out what became of a request; afterwards nobody will act on it any more.

        Return False if somebody who could not be heard may have acted on it.
        """
        claims = self._asking.claims
        began_s = self._asking.clock_s()
        asked_n = len(self._left)
        located = await claims.locate(self._region)
        known = {(one.instance_id, one.node) for one in self.placed}
        # What is held under an older attempt may yet meet its own CancelLaunch: it doesn't count.
        new = [
            one
            for one in (located.held if self._wanted.holds else located.there)
            if one.attempt == self.attempt and (one.instance_id, one.node) not in known
        ]
        surplus = self._keep(new)
        outcome: AskOutcome = "found" if len(new) > len(surplus) else "not_found"
        detail = "" if located.heard_all else "not every node has answered"
        self._note("LocateLaunch", outcome, began_s, asked_n, detail=detail)
        heard_all = not await claims.release(surplus)
        if self._left:
            began_s = self._asking.clock_s()
            confirmed = await claims.cancel(self._region, self._left, attempt=self.attempt)
            detail = "" if confirmed else "not every node has confirmed"
            self._note("CancelLaunch", "released", began_s, len(self._left), detail=detail)
            heard_all &= confirmed
            await self._wait_until_expired(unanswered)
        self.attempt += 1
        return heard_all

    async def _wait_until_expired(self, unanswered: Unanswered) -> None:
        now_ms = self._asking.now_ms()
        wait_ms = unanswered.expires_at_ms + CLOCK_SKEW_ALLOWANCE_MS - now_ms
        if wait_ms > 0:
            await self._asking.sleep(wait_ms / 1000)

    def _note(
        self,
        subject: str,
        outcome: AskOutcome,
        began_s: float,
        count: int,
        *,
        node: str | None = None,
        detail: str = "",
    ) -> None:
        self._log.note(
            self._region,
            subject,
            outcome,
            attempt=self.attempt,
            count=count,
            began_s=began_s,
            node=node,
            detail=detail,
        )


def _accepted(region: str, accepted: messages.Accepted, attempt: int) -> list[Placed]:
    return [
        Placed(
            instance_id=instance_id,
            region=region,
            zone=accepted.zone,
            node=accepted.node,
            attempt=attempt,
        )
        for instance_id in accepted.instance_ids
    ]


def _told(answer: LaunchAnswer) -> tuple[AskOutcome, str | None, str]:
    """Return an answer's outcome, node and detail."""
    match answer:
        case messages.Accepted():
            return "accepted", answer.node, f"takes {len(answer.instance_ids)}"
        case messages.Rejected():
            return answer.reason, answer.node, answer.message
        case NoResponders():
            return "no_responders", None, ""
        case Unreachable():
            return "unreachable", None, answer.why
        case Unanswered():
            return "no_answer", None, answer.why
