"""Tells nodes what to do. All of it may be told again: an order that got lost comes next minute."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from fleetcast import messages
from fleetcast.errors import InvalidMessage
from fleetcast.subjects import NodeAction, node_subject
from lambdas.bus import RegionError
from lambdas.reconcile.concurrency import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lambdas.claims import RegionBus
    from lambdas.reconcile.decisions import Order

_log = logging.getLogger(__name__)

_NODE_TIMEOUT_S: Final = 1.0


async def give_orders(
    bus: RegionBus, region: str, orders: Iterable[Order]
) -> tuple[list[Order], list[Exception]]:
    """Give all orders, those that fit into one request at once.

    Return those that their nodes have carried out, and what went wrong beside silence.
    """
    by_request: defaultdict[tuple[object, ...], list[Order]] = defaultdict(list)
    for order in orders:
        report = order.sighting.report
        of_launch = (report.launch_id, report.attempt)
        key = of_launch if order.action is NodeAction.RELEASE else ()
        by_request[order.sighting.node, order.action, *key].append(order)

    async def give(together: Sequence[Order]) -> Sequence[Order]:
        return together if await _give(bus, region, together) else ()

    done, errors = await for_each(by_request.values(), give)
    return [order for together in done for order in together], errors


async def _give(bus: RegionBus, region: str, together: Sequence[Order]) -> bool:
    """Give one node one order for some instances. Return whether it has answered."""
    first = together[0]
    node, report = first.sighting.node, first.sighting.report
    instance_ids = tuple(order.sighting.report.instance_id for order in together)
    request: messages.Message = messages.InstancesRequest(instance_ids=instance_ids)
    if first.action is NodeAction.RELEASE:
        request = messages.AttemptRequest(
            launch_id=report.launch_id, attempt=report.attempt, instance_ids=instance_ids
        )
    why_not = None
    try:
        reply = await bus.ask(
            region,
            node_subject(region, node, first.action),
            messages.encode(request),
            timeout_s=_NODE_TIMEOUT_S,
        )
        messages.decode(reply, messages.InstancesReply)
    except (RegionError, InvalidMessage) as error:
        why_not = str(error)
    for order in together:
        _log.info(
            "node told",
            extra={
                "region": region,
                "node": node,
                "action": first.action.value,
                "instance": order.sighting.report.instance_id,
                "launch": report.launch_id,
                "attempt": report.attempt,
                "why": order.why,
                "unanswered": why_not,
            },
        )
    return why_not is None
