"""Resolves a launch that its function has left: what the nodes hold is what it has become.

Done by whoever comes first, the caller with the same ClientToken or reconcile; done twice, it
comes to the same. Never before Reservation.undecided_until_s and the allowed skew are over: until
then its function may be at work, and a request may still be accepted. Source:
docs/launch-protocol.

Launching imports this module: it must import neither boto3 nor Powertools.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from fleetcast.messages import CLOCK_SKEW_ALLOWANCE_MS
from lambdas.claims import LAST_ATTEMPT, Claims, placed_records
from lambdas.launch_table import LaunchConflict, LaunchDecided

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from lambdas.claims import Located, Placed, RegionBus
    from lambdas.fleet_table import FleetTable
    from lambdas.launch_table import Reservation
    from lambdas.records import InstanceRecord

_log = logging.getLogger(__name__)

Resolution: TypeAlias = Literal["placed", "refused", "unknown"]


def is_undecided(reservation: Reservation, *, now_s: float) -> bool:
    """Tell whether a launch's own function may still be at work on it. now_s: epoch seconds."""
    return (
        reservation.state in {"placing", "unknown"}
        and now_s < reservation.undecided_until_s + CLOCK_SKEW_ALLOWANCE_MS / 1000
    )


async def resolve_launch(
    reservation: Reservation,
    regions: Sequence[str],
    *,
    bus: RegionBus,
    fleet: FleetTable,
    known_nodes: Callable[[str], Collection[str]],
    sleep: Callable[[float], Awaitable[None]],
) -> Resolution:
    """Find out what a launch has become, and write it down.

    regions: all in which it may be. known_nodes: as Claims takes it. Raises botocore's errors.
    """
    # Who has begun to decide it may have dropped some: they can't be the launch any more.
    records = await asyncio.to_thread(
        fleet.instances_by_id, reservation.account_id, reservation.instance_ids
    )
    claims = Claims(
        bus,
        reservation.reservation_id,
        known_nodes=known_nodes,
        sleep=sleep,
        expires_at_ms=None,
    )
    located = await asyncio.gather(*(claims.locate(region) for region in regions))
    chosen = _launch_of(reservation, records, located)
    try:
        if chosen:
            await _write_placed(reservation, records, chosen, fleet)
        elif all(one.heard_all for one in located):
            refused = msgspec.structs.replace(reservation, state="refused")
            await asyncio.to_thread(fleet.launches.refuse, refused)
        else:
            return "unknown"
    except LaunchDecided as decided:
        return decided.state
    except LaunchConflict:
        return "unknown"  # somebody else decides it at this moment
    resolution: Resolution = "placed" if chosen else "refused"
    _log.info(
        "launch resolved",
        extra={
            "launch": reservation.reservation_id,
            "resolution": resolution,
            "instances": len(chosen),
            "region": chosen[0].region if chosen else None,
        },
    )
    await _give_up_the_rest(reservation, regions, located, chosen, claims)
    return resolution


def _launch_of(
    reservation: Reservation, records: Iterable[InstanceRecord], located: Iterable[Located]
) -> list[Placed]:
    """Return the launch's instances in the one region that has enough of them, or nothing.

    Of two such regions the later attempt is right, of two holders of one instance too.
    """
    wanted = {record.instance_id for record in records}
    candidates: list[list[Placed]] = []
    for in_region in located:
        by_id: dict[str, Placed] = {}
        for one in in_region.there:
            other = by_id.get(one.instance_id)
            if one.instance_id in wanted and (
                other is None or (one.attempt, one.node) > (other.attempt, other.node)
            ):
                by_id[one.instance_id] = one
        if len(by_id) >= reservation.min_count:
            candidates.append(list(by_id.values()))
    return max(
        candidates,
        key=lambda found: (max(one.attempt for one in found), found[0].region),
        default=[],
    )


async def _write_placed(
    reservation: Reservation,
    records: Iterable[InstanceRecord],
    chosen: list[Placed],
    fleet: FleetTable,
) -> None:
    await asyncio.to_thread(
        fleet.launches.place,
        msgspec.structs.replace(reservation, state="placed", region=chosen[0].region),
        placed_records(records, chosen),
    )


async def _give_up_the_rest(
    reservation: Reservation,
    regions: Sequence[str],
    located: Iterable[Located],
    chosen: Iterable[Placed],
    claims: Claims,
) -> None:
    """Have given up, for ever, what is not the launch. What can't be told now, reconcile does."""
    right = {(one.instance_id, one.node): one for one in chosen}
    surplus = [
        one
        for in_region in located
        for one in (*in_region.there, *in_region.held)
        if (one.instance_id, one.node) not in right
    ]
    kept_ids = {instance_id for instance_id, _ in right}
    others = [one for one in reservation.instance_ids if one not in kept_ids]
    await asyncio.gather(
        claims.release(surplus),
        *(claims.cancel(region, others, attempt=LAST_ATTEMPT) for region in regions if others),
    )
