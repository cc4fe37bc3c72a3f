"""Asks the nodes of a region what they hold and what they have room for."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from fleetcast import messages
from fleetcast.errors import InvalidMessage, InvalidSubjectToken
from fleetcast.subjects import RegionAction, check_node, region_subject
from lambdas.bus import RegionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from lambdas.claims import RegionBus

_log = logging.getLogger(__name__)

_INVENTORY_TIMEOUT_S: Final = 2.0
# All of it is waited for: a node that nobody knows yet shows up here.
_CAPACITY_WAIT_S: Final = 0.5

_ReplyT = TypeVar("_ReplyT", messages.InstancesReply, messages.CapacityReply)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the nodes of a region said, by node.

    inventories: what each holds, by instance id; a node that isn't here did not answer.
    clock_skews_ms: how far each clock is ahead, as far as the time that the answer took can tell.
    """

    inventories: dict[str, dict[str, messages.InstanceReport]] = field(default_factory=dict)
    zones: dict[str, str | None] = field(default_factory=dict)
    capacities: dict[str, messages.CapacityReply] = field(default_factory=dict)
    clock_skews_ms: dict[str, int] = field(default_factory=dict)


async def hear_region(
    bus: RegionBus, region: str, *, expected: AbstractSet[str], now_s: Callable[[], float]
) -> Heard:
    """Ask all nodes of a region.

    expected: the nodes that should answer; once they have, nobody else's inventory is waited for,
    unless the question for capacity shows that there are others.
    """
    heard = Heard()
    replies = await _hear_inventories(bus, region, heard, expected=len(expected) or None)
    if not replies:
        return heard
    asked_s = now_s()
    for capacity in await _replies(
        bus,
        region,
        RegionAction.DESCRIBE_CAPACITY,
        messages.CapacityReply,
        timeout_s=_CAPACITY_WAIT_S,
    ):
        heard.capacities[capacity.node] = capacity
        if capacity.now_ms is not msgspec.UNSET:
            heard.clock_skews_ms[capacity.node] = capacity.now_ms - round(asked_s * 1000)
    others = (expected | heard.capacities.keys()) - heard.inventories.keys()
    if others and replies >= len(expected):
        # It ended with as many answers as nodes were expected; who came later was cut off.
        await _hear_inventories(bus, region, heard, expected=None)
    return heard


async def _hear_inventories(
    bus: RegionBus, region: str, heard: Heard, *, expected: int | None
) -> int:
    """Add what the nodes hold to what was heard. Return how many answered."""
    replies = await _replies(
        bus,
        region,
        RegionAction.INVENTORY,
        messages.InstancesReply,
        timeout_s=_INVENTORY_TIMEOUT_S,
        expected=expected,
    )
    inventories: dict[str, dict[str, messages.InstanceReport]] = {}
    for reply in replies:
        if reply.node in inventories:
            # What one of them hasn't, the other may have: neither's instances are missing.
            _log.error("two agents have one name", extra={"region": region, "node": reply.node})
        held = inventories.setdefault(reply.node, {})
        held.update({report.instance_id: report for report in reply.instances})
        if reply.zone is not msgspec.UNSET:
            heard.zones[reply.node] = reply.zone
    heard.inventories.update(inventories)
    return len(replies)


async def _replies(
    bus: RegionBus,
    region: str,
    action: RegionAction,
    kind: type[_ReplyT],
    *,
    timeout_s: float,
    expected: int | None = None,
) -> list[_ReplyT]:
    """Ask all nodes; a reply that can't be read, or a node that can't be asked, is silence."""
    try:
        payloads = await bus.gather(
            region,
            region_subject(region, action),
            messages.encode(messages.RegionRequest()),
            timeout_s=timeout_s,
            expected=expected,
        )
    except RegionError as error:
        _log.warning(
            "region did not answer",
            extra={"region": region, "action": action.value, "why": error.why},
        )
        return []
    replies: list[_ReplyT] = []
    for payload in payloads:
        try:
            reply = messages.decode(payload, kind)
            check_node(reply.node)
        except (InvalidMessage, InvalidSubjectToken) as error:
            _log.warning(
                "reply not understood",
                extra={"region": region, "action": action.value, "why": str(error)},
            )
        else:
            replies.append(reply)
    return replies
