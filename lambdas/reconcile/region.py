"""Reconciles one region: what is recorded there against what its nodes hold.

Reads, asks, and carries out what `decisions` decides. Whatever is cut off between two steps is
found as it was by the next run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from fleetcast.subjects import NodeAction
from lambdas.batch_reads import TableBusy
from lambdas.fleet_table import SEEN_WITHIN_S
from lambdas.reconcile.concurrency import for_each
from lambdas.reconcile.decisions import (
    Order,
    Stray,
    Write,
    compare,
    decide,
    decide_lost,
    due_strays,
    is_held,
    is_table_lost,
)
from lambdas.reconcile.node_records import forgotten, node_record
from lambdas.reconcile.nodes import hear_region
from lambdas.reconcile.orders import give_orders

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from lambdas.claims import RegionBus
    from lambdas.fleet_table import FleetTable
    from lambdas.launch_table import Reservation
    from lambdas.reconcile.decisions import Compared, Sighting
    from lambdas.reconcile.nodes import Heard
    from lambdas.reconcile.table import LiveInstance, Owned, ReconcileTable
    from lambdas.records import InstanceRecord, NodeRecord

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True, kw_only=True)
class Services:
    """What a run works with. now_s: epoch seconds. sleep: waits, in seconds."""

    bus: RegionBus
    fleet: FleetTable
    table: ReconcileTable
    now_s: Callable[[], float]
    sleep: Callable[[float], Coroutine[Any, Any, None]]


@dataclass(kw_only=True)
class RegionSummary:
    """What a run saw and did in a region.

    nodes: those that were seen within SEEN_WITHIN_S. unknown_instances_n: on nodes that didn't
    answer. room: how many more of each type fit, on all nodes together. clock_skew_ms: the
    largest, either way. errors: what could not be done.
    """

    region: str
    nodes: frozenset[str] = frozenset()
    silent_nodes_n: int = 0
    unknown_instances_n: int = 0
    orphans_destroyed_n: int = 0
    orphans_held_back_n: int = 0
    records_closed_n: int = 0
    clock_skew_ms: int = 0
    room: Counter[str] = field(default_factory=Counter)
    errors: list[Exception] = field(default_factory=list)


async def reconcile_region(services: Services, region: str) -> RegionSummary:
    """Reconcile a region once. What fails is in the summary, and keeps nothing else from it.

    Raises botocore's errors if the records can't be read.
    """
    return await _Run(services, region).run()


class _Run:
    def __init__(self, services: Services, region: str) -> None:
        self._services = services
        self._table = services.table
        self._region = region
        self._now_s = services.now_s()
        self._summary = RegionSummary(region=region)

    async def run(self) -> RegionSummary:
        # Before the nodes are asked: see decisions.
        recorded, live = await asyncio.gather(
            asyncio.to_thread(self._services.fleet.nodes, self._region),
            asyncio.to_thread(self._table.live_instances, self._region),
        )
        awaited = {node.node for node in recorded if self._now_s - node.last_seen_s < SEEN_WITHIN_S}
        heard = await hear_region(
            self._services.bus, self._region, expected=awaited, now_s=self._services.now_s
        )
        compared = compare(live, heard.inventories)
        await self._follow_reachability(compared)
        await self._step(self._close_lost(compared.lost))
        nodes = {node.node: node for node in recorded}
        strays = await self._step(self._follow(compared.sightings))
        if strays is not None:
            await self._destroy_strays(strays, nodes, heard)
        await self._write_nodes(nodes, live, strays, heard)
        self._count(recorded, live, heard)
        return self._summary

    # --- what stands out -------------------------------------------------------------------

    async def _follow_reachability(self, compared: Compared) -> None:
        """Mark the instances of silent nodes, once, and unmark those of nodes that are back."""

        async def mark(one: LiveInstance) -> bool:
            return await asyncio.to_thread(self._table.mark_unreachable, one, since_s=self._now_s)

        async def unmark(one: LiveInstance) -> bool:
            return await asyncio.to_thread(self._table.mark_reachable, one)

        newly = [one for one in compared.silent if one.unreachable_since_s is None]
        for phrase, those, act in (
            ("instances unreachable", newly, mark),
            ("instances reachable again", compared.back, unmark),
        ):
            await self._each(those, act)
            for node, count in sorted(Counter(one.node for one in those).items()):
                _log.info(phrase, extra={"region": self._region, "node": node, "instances": count})

    async def _close_lost(self, lost: Sequence[LiveInstance]) -> None:
        instances, launches = await self._read(
            [(one.account_id, one.instance_id, one.reservation_id) for one in lost]
        )
        for write in await self._write(
            decide_lost(
                one,
                instances.get((one.account_id, one.instance_id)),
                launches.get((one.account_id, one.reservation_id)),
                now_s=self._now_s,
            )
            for one in lost
        ):
            self._summary.records_closed_n += write.before.state != "shutting-down"

    async def _follow(self, sightings: Sequence[Sighting]) -> list[Stray]:
        """Do at once what is to be done about what stands out. Return what has no record."""
        owned = {one: one.account_id for one in sightings if one.account_id is not None}
        for one in sightings:
            if one.account_id is None:
                # Its agent is too old to say whose it is: nothing can be looked up.
                self._tell("instance of nobody", one)
        instances, launches = await self._read(
            [
                (account_id, one.report.instance_id, one.report.launch_id)
                for one, account_id in owned.items()
            ]
        )
        decisions = [
            decide(
                one,
                instances.get((account_id, one.report.instance_id)),
                launches.get((account_id, one.report.launch_id)),
                region=self._region,
                now_s=self._now_s,
            )
            for one, account_id in owned.items()
        ]
        await self._write(one for one in decisions if isinstance(one, Write))
        await self._order(one for one in decisions if isinstance(one, Order))
        return [one for one in decisions if isinstance(one, Stray)]

    async def _destroy_strays(
        self, strays: Sequence[Stray], nodes: Mapping[str, NodeRecord], heard: Heard
    ) -> None:
        held_n = sum(
            is_held(report)
            for inventory in heard.inventories.values()
            for report in inventory.values()
        )
        if is_table_lost(strays_n=len(strays), held_n=held_n):
            _log.error(
                "orphans held back: has the table been lost?",
                extra={"region": self._region, "orphans": len(strays), "held": held_n},
            )
            self._summary.orphans_held_back_n = len(strays)
            return
        due = due_strays(strays, nodes, now_s=self._now_s)
        for one in strays:
            if one not in due:
                self._tell("instance without a record", one.sighting)
        await self._order(
            Order(
                action=NodeAction.RELEASE,
                sighting=one.sighting,
                why="it has no record",
                surplus=True,
            )
            for one in due
        )

    async def _read(
        self, ids: Sequence[tuple[str, str, str]]
    ) -> tuple[dict[Owned, InstanceRecord], dict[Owned, Reservation]]:
        """Read instances and their launches. ids: of account, instance and launch."""
        # The launches first: of one that is decided, what is read afterwards is final.
        launches = await asyncio.to_thread(
            self._table.reservations, [(account_id, launch) for account_id, _, launch in ids]
        )
        instances = await asyncio.to_thread(
            self._table.instances, [(account_id, instance) for account_id, instance, _ in ids]
        )
        return instances, launches

    # --- carrying it out -------------------------------------------------------------------

    async def _write(self, writes: Iterable[Write | None]) -> list[Write]:
        """Move records on, as far as nobody else has. Return those that were."""

        async def write(one: Write) -> Write | None:
            done = await asyncio.to_thread(self._services.fleet.change_state, one.before, one.after)
            return one if done else None

        written = [one for one in await self._each(filter(None, writes), write) if one]
        for one in written:
            _log.info(
                "record moved on",
                extra={
                    "region": self._region,
                    "node": one.before.node,
                    "instance": one.before.instance_id,
                    "attempt": one.before.attempt,
                    "before": one.before.state,
                    "after": one.after.state,
                    "why": one.after.state_reason_message,
                },
            )
        return written

    async def _order(self, orders: Iterable[Order]) -> None:
        done, errors = await give_orders(self._services.bus, self._region, orders)
        self._summary.orphans_destroyed_n += sum(one.surplus for one in done)
        self._summary.errors += errors

    async def _write_nodes(
        self,
        nodes: Mapping[str, NodeRecord],
        live: Iterable[LiveInstance],
        strays: Iterable[Stray] | None,
        heard: Heard,
    ) -> None:
        """Keep what the nodes said. strays: None if it isn't known which they hold."""
        by_node: defaultdict[str, list[str]] = defaultdict(list)
        for stray in strays or ():
            by_node[stray.sighting.node].append(stray.sighting.report.instance_id)

        async def put(node: str) -> bool:
            before = nodes.get(node)
            record = node_record(
                self._region,
                node,
                heard,
                before=before,
                strays=(before.strays if before else ()) if strays is None else by_node[node],
                now_s=self._now_s,
            )
            return await asyncio.to_thread(self._table.put_node, record)

        async def forget(node: NodeRecord) -> None:
            if await asyncio.to_thread(self._table.forget_node, node):
                _log.info(
                    "node forgotten",
                    extra={
                        "region": self._region,
                        "node": node.node,
                        "last_seen_s": node.last_seen_s,
                    },
                )

        await self._each(heard.inventories, put)
        occupied = {one.node for one in live}
        await self._each(
            forgotten([*nodes.values()], heard=heard, occupied=occupied, now_s=self._now_s), forget
        )

    async def _each(
        self, those: Iterable[_T], act: Callable[[_T], Coroutine[Any, Any, _ResultT]]
    ) -> list[_ResultT]:
        results, errors = await for_each(those, act)
        self._summary.errors += errors
        return results

    async def _step(self, step: Coroutine[Any, Any, _ResultT]) -> _ResultT | None:
        """Go through a step that begins with reading; None if that fails."""
        try:
            return await step
        except (BotoCoreError, ClientError, TableBusy) as error:
            self._summary.errors.append(error)
            return None

    # --- telling ---------------------------------------------------------------------------

    def _tell(self, phrase: str, sighting: Sighting) -> None:
        _log.warning(
            phrase,
            extra={
                "region": self._region,
                "node": sighting.node,
                "instance": sighting.report.instance_id,
                "launch": sighting.report.launch_id,
                "attempt": sighting.report.attempt,
            },
        )

    def _count(
        self, recorded: Iterable[NodeRecord], live: Iterable[LiveInstance], heard: Heard
    ) -> None:
        known = {node.node for node in recorded} | {one.node for one in live}
        recent = {node.node for node in recorded if self._now_s - node.last_seen_s < SEEN_WITHIN_S}
        summary = self._summary
        summary.nodes = frozenset(recent | heard.inventories.keys())
        summary.silent_nodes_n = len(known - heard.inventories.keys())
        summary.unknown_instances_n = sum(one.node not in heard.inventories for one in live)
        summary.clock_skew_ms = max(map(abs, heard.clock_skews_ms.values()), default=0)
        for capacity in heard.capacities.values():
            summary.room.update(capacity.room)
