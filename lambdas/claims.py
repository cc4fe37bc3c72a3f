"""What nodes hold of a launch: located, committed, given up.

Owns the questions that a launch asks beside the launch request itself, and what their answers
mean. All of them may be repeated. It decides nothing about a launch: launching does, and whoever
resolves a launch that its function has left. Source: docs/launch-protocol.

Launching imports this module: it must import neither boto3 nor Powertools.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from fleetcast import messages
from fleetcast.errors import InvalidInput, InvalidMessage
from fleetcast.subjects import (
    NodeAction,
    RegionAction,
    check_node,
    node_subject,
    region_subject,
)
from lambdas.bus import NoResponders, RegionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from lambdas.records import InstanceRecord

_log = logging.getLogger(__name__)

# Above every attempt that a launch can have: under this one, nobody ever accepts it again.
LAST_ATTEMPT: Final = 2**31 - 1

# For how long a node may act on an order: no longer than somebody waits for its answer.
ORDER_VALID_MS: Final = 1_000

_NODE_TIMEOUT_S: Final = 1.0
_REGION_TIMEOUT_S: Final = 1.0
_CANCEL_TRIES: Final = 2
_COMMIT_TRIES: Final = 3
_COMMIT_AGAIN_S: Final = 0.2
# Such an instance is there; one that is ending or has ended isn't.
_THERE: Final = frozenset({"pending", "running", "stopping", "stopped"})


class RegionBus(Protocol):
    """Asks regions: lambdas.bus.Bus, whose errors it raises."""

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        """Return the first reply. headers: makes them when the request leaves."""

    async def gather(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        expected: int | None = None,
    ) -> list[bytes]:
        """Return the replies of all who listen; at once when there are as many as expected."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where one instance is. attempt: the fencing number under which the node holds it."""

    instance_id: str
    region: str
    zone: str | None
    node: str
    attempt: int


def placed_records(
    records: Iterable[InstanceRecord], placed: Iterable[Placed]
) -> list[InstanceRecord]:
    """Return the records of those that are placed, with where they are."""
    places = {one.instance_id: one for one in placed}
    return [
        msgspec.structs.replace(
            record, region=at.region, zone=at.zone, node=at.node, attempt=at.attempt
        )
        for record in records
        if (at := places.get(record.instance_id))
    ]


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """Where instances of a launch are in one region.

    there: those that have been launched, also if they have ended since: a job that is done must
    not be done again. held: those that wait for Commit. heard_all:
    every known node has answered; if none is known, that somebody has, or that nobody listens.
    """

    there: tuple[Placed, ...]
    held: tuple[Placed, ...]
    heard_all: bool


class Claims:
    """The claims of one launch.

    known_nodes: the nodes that a region is known to have, by its name; called on a thread, may
    raise botocore's errors. sleep: waits, in seconds.
    expires_at_ms: makes the time after which nobody may act on an order that is given now, epoch
    milliseconds; None once the launch is decided, for what follows from that holds for ever.
    No method raises for silence: it says who has been heard.
    """

    def __init__(
        self,
        bus: RegionBus,
        launch_id: str,
        *,
        known_nodes: Callable[[str], Collection[str]],
        sleep: Callable[[float], Awaitable[None]],
        expires_at_ms: Callable[[], int] | None,
    ) -> None:
        self._bus = bus
        self._launch_id = launch_id
        self._known_nodes = known_nodes
        self._sleep = sleep
        self._expires_at_ms = expires_at_ms

    async def locate(self, region: str) -> Located:
        """Ask every agent of a region what it holds of the launch."""
        request = messages.LocateRequest(launch_id=self._launch_id)
        replies, heard_all = await self._ask_all(
            region, RegionAction.LOCATE_LAUNCH, lambda: request
        )
        there: list[Placed] = []
        held: list[Placed] = []
        for reply in replies:
            for report in reply.instances:
                given_up = report.state_reason_code == messages.GIVEN_UP
                if report.launch_id == self._launch_id and not given_up:
                    (held if report.held is True else there).append(
                        Placed(
                            instance_id=report.instance_id,
                            region=region,
                            zone=reply.zone if isinstance(reply.zone, str) else None,
                            node=reply.node,
                            attempt=report.attempt,
                        )
                    )
        return Located(there=tuple(there), held=tuple(held), heard_all=heard_all)

    async def is_anybody_there(self, region: str) -> bool:
        """Tell whether any agent of a region is connected now, with room or without.

        True also for a region that isn't known to have nodes; False when there is no telling.
        """
        request = messages.LocateRequest(launch_id=self._launch_id)
        try:
            await self._bus.ask(
                region,
                region_subject(region, RegionAction.LOCATE_LAUNCH),
                messages.encode(request),
                timeout_s=_REGION_TIMEOUT_S,
            )
        except NoResponders:
            return not await self._known(region)
        except RegionError:
            return False
        return True

    async def cancel(self, region: str, instance_ids: Iterable[str], *, attempt: int) -> bool:
        """Have every agent of a region give these up, and never accept them up to this attempt.

        Return whether all have confirmed it, as Located.heard_all.
        """
        ids = tuple(instance_ids)
        for _ in range(_CANCEL_TRIES):
            replies, heard_all = await self._ask_all(
                region, RegionAction.CANCEL_LAUNCH, lambda: self._order(ids, attempt=attempt)
            )
            if heard_all or not replies:
                return heard_all
        return False  # some nodes are slow or gone

    async def release(self, placed: Iterable[Placed]) -> list[Placed]:
        """Have nodes give up what they hold. Return what none has confirmed: it may run on."""
        claims = _by_holder(placed)
        # Each is asked, whatever another one says: nothing may be left behind that needn't be.
        replies = await asyncio.gather(
            *(self._ask_holder(NodeAction.RELEASE, claim) for claim in claims)
        )
        return [
            one
            for claim, reply in zip(claims, replies, strict=True)
            if reply is None
            for one in claim
        ]

    async def commit(self, held: Iterable[Placed]) -> tuple[list[Placed], list[Placed]]:
        """Boot what is held. Return what boots now, and what none has answered for.

        What is in neither has lapsed.
        """
        claims = _by_holder(held)
        replies = await asyncio.gather(*(self._commit_at_holder(claim) for claim in claims))
        booting: list[Placed] = []
        unanswered: list[Placed] = []
        for claim, reply in zip(claims, replies, strict=True):
            if reply is None:
                unanswered += claim
                continue
            ids = {
                report.instance_id
                for report in reply.instances
                if report.launch_id == self._launch_id
                and report.attempt == claim[0].attempt
                and report.state in _THERE
                and report.held is not True
            }
            booting += [one for one in claim if one.instance_id in ids]
        return booting, unanswered

    async def _commit_at_holder(self, claim: list[Placed]) -> messages.InstancesReply | None:
        for tries_left in reversed(range(_COMMIT_TRIES)):
            reply = await self._ask_holder(NodeAction.COMMIT, claim)
            if reply is not None or not tries_left:
                return reply
            await self._sleep(_COMMIT_AGAIN_S)  # its agent may be on its way back
        return None

    async def _ask_holder(
        self, action: NodeAction, claim: list[Placed]
    ) -> messages.InstancesReply | None:
        """Ask the node that holds these instances. Return None if it gives no answer."""
        holder = claim[0]
        request = self._order((one.instance_id for one in claim), attempt=holder.attempt)
        try:
            payload = await self._bus.ask(
                holder.region,
                node_subject(holder.region, holder.node, action),
                messages.encode(request),
                timeout_s=_NODE_TIMEOUT_S,
            )
            return messages.decode(payload, messages.InstancesReply)
        except (RegionError, InvalidMessage):
            return None

    def _order(self, instance_ids: Iterable[str], *, attempt: int) -> messages.AttemptRequest:
        return messages.AttemptRequest(
            launch_id=self._launch_id,
            attempt=attempt,
            instance_ids=tuple(instance_ids),
            # One that is late must not undo what its launch has been resolved to meanwhile.
            expires_at_ms=self._expires_at_ms() if self._expires_at_ms else msgspec.UNSET,
        )

    async def _ask_all(
        self, region: str, action: RegionAction, request: Callable[[], messages.Message]
    ) -> tuple[list[messages.InstancesReply], bool]:
        """Ask every agent of a region. Return their replies, and whether all have replied.

        request: makes it when it leaves.
        """
        known = await self._known(region)
        # As many may have answered who are not those: nodes that nobody knows yet.
        for expected in (len(known or ()) or None, None):
            try:
                payloads = await self._bus.gather(
                    region,
                    region_subject(region, action),
                    messages.encode(request()),
                    timeout_s=_REGION_TIMEOUT_S,
                    expected=expected,
                )
            except NoResponders:
                return [], known is not None and not known
            except RegionError:
                return [], False
            replies = _understood(payloads)
            missing = (known or frozenset()) - {reply.node for reply in replies}
            if not missing or len(payloads) != expected:
                break
        return replies, known is not None and not missing and len(replies) == len(payloads)

    async def _known(self, region: str) -> frozenset[str] | None:
        """Return the nodes that a region is known to have; None if that can't be found out now."""
        try:
            # On this thread, other regions' answers would come too late.
            return frozenset(await asyncio.to_thread(self._known_nodes, region))
        except (BotoCoreError, ClientError) as problem:
            _log.warning(
                "known nodes can't be read", extra={"region": region, "why": repr(problem)}
            )
            return None


def _understood(payloads: Iterable[bytes]) -> list[messages.InstancesReply]:
    """Return the replies that can be read. Whose another one is can't be told."""
    replies: list[messages.InstancesReply] = []
    for payload in payloads:
        with contextlib.suppress(InvalidInput):
            reply = messages.decode(payload, messages.InstancesReply)
            check_node(reply.node)
            replies.append(reply)
    return replies


def _by_holder(placed: Iterable[Placed]) -> list[list[Placed]]:
    """Group what one request can be about: the same node, the same attempt."""
    by_holder: defaultdict[tuple[str, str, int], list[Placed]] = defaultdict(list)
    for one in placed:
        by_holder[one.region, one.node, one.attempt].append(one)
    return list(by_holder.values())
