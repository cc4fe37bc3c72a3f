"""One run: all regions side by side, then the launches that their functions have left."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lambdas.reconcile.concurrency import for_each
from lambdas.reconcile.region import RegionSummary, reconcile_region
from lambdas.resolution import is_undecided, resolve_launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lambdas.reconcile.region import Services
    from lambdas.reconcile.table import UndecidedLaunch

_log = logging.getLogger(__name__)

# Each asks every region. What is more than these waits for the next run.
_LAUNCHES_RESOLVED: Final = 100


@dataclass(kw_only=True)
class RunSummary:
    """What a run saw and did. undecided_launches_n: those that it could not resolve."""

    regions: list[RegionSummary] = field(default_factory=list)
    launches_resolved_n: int = 0
    undecided_launches_n: int = 0
    errors: list[Exception] = field(default_factory=list)


async def reconcile_fleet(services: Services, regions: Sequence[str]) -> RunSummary:
    """Reconcile all regions once. What fails is in the summary, and keeps nothing else from it."""
    summary = RunSummary()

    async def reconcile(region: str) -> RegionSummary:
        return await reconcile_region(services, region)

    summary.regions, summary.errors = await for_each(regions, reconcile)
    for one in summary.regions:
        summary.errors += one.errors
    # Only with every region's nodes known can it be told that a launch is nowhere.
    if len(summary.regions) == len(regions):
        await _resolve_launches(services, summary)
    return summary


async def _resolve_launches(services: Services, summary: RunSummary) -> None:
    known_nodes = {one.region: one.nodes for one in summary.regions}

    async def resolve(launch: UndecidedLaunch) -> None:
        reservation = await asyncio.to_thread(
            services.fleet.launches.read, launch.account_id, launch.reservation_id
        )
        if reservation is None or reservation.state not in {"placing", "unknown"}:
            return  # it has been decided since the index was read
        if is_undecided(reservation, now_s=services.now_s()):
            return  # its function may be at work
        resolution = await resolve_launch(
            reservation,
            list(known_nodes),
            bus=services.bus,
            fleet=services.fleet,
            known_nodes=lambda region: known_nodes[region],
            sleep=services.sleep,
        )
        if resolution == "unknown":
            summary.undecided_launches_n += 1
            _log.info("launch still unknown", extra={"launch": launch.reservation_id})
        else:
            summary.launches_resolved_n += 1

    try:
        launches = await asyncio.to_thread(services.table.undecided_launches)
    except Exception as error:  # noqa: BLE001 - told at the end of the run, by its raiser
        summary.errors.append(error)
        return
    _, errors = await for_each(launches[:_LAUNCHES_RESOLVED], resolve)
    summary.errors += errors
