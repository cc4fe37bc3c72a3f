"""What is to be done about what a node holds, or doesn't. Pure.

A launch's records are looked at twice: in the index before the nodes are asked, and in the table
after. Two things follow, and no clock is needed for them. What was recorded on a node before it
was asked, and isn't in its answer, is gone. And what the table says afterwards is newer than the
answer: a node never holds the place of a launch that is decided and isn't recorded there.
Source: docs/launch-protocol, "Reconcile"; ADR 0010.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from fleetcast.subjects import NodeAction
from lambdas.records import NEXT_STATES, followed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetcast.messages import InstanceReport
    from lambdas.launch_table import Reservation
    from lambdas.reconcile.table import LiveInstance
    from lambdas.records import InstanceRecord, NodeRecord

# Instances without any record are destroyed when two runs in a row have seen them. Runs that
# overlap are one: the second sighting comes at least this much later.
STRAY_AFTER_S: Final = 30.0
# More of them than this, and than half of a region, and it is the table that is lost.
_STRAYS_BELIEVED: Final = 10

_LIVE: Final = frozenset({"pending", "running", "stopping", "stopped"})


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """An instance in a node's inventory. known: what the index had on this node before."""

    node: str
    report: InstanceReport
    known: LiveInstance | None

    @property
    def account_id(self) -> str | None:
        """Whose it is, or None if nobody says."""
        if self.known is not None:
            return self.known.account_id
        account_id = self.report.account_id
        return None if account_id is msgspec.UNSET else account_id


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What stands out between a region's index and its nodes' inventories.

    sightings: to be looked up in the table. lost: not on the node that they were recorded on.
    silent: on nodes that did not answer. back: marked as such, though their nodes answer.
    """

    sightings: tuple[Sighting, ...]
    lost: tuple[LiveInstance, ...]
    silent: tuple[LiveInstance, ...]
    back: tuple[LiveInstance, ...]


@dataclass(frozen=True, kw_only=True)
class Write:
    """Move a record on."""

    before: InstanceRecord
    after: InstanceRecord


@dataclass(frozen=True, kw_only=True)
class Order:
    """Tell a node what to do with an instance. surplus: it is one that should not be there."""

    action: Literal[NodeAction.RELEASE, NodeAction.STOP, NodeAction.TERMINATE]
    sighting: Sighting
    why: str
    surplus: bool


@dataclass(frozen=True, kw_only=True)
class Stray:
    """Nobody knows of the instance: destroy it, if it is seen again."""

    sighting: Sighting


Decision: TypeAlias = Write | Order | Stray


def compare(
    live: Iterable[LiveInstance],
    inventories: Mapping[str, Mapping[str, InstanceReport]],
) -> Compared:
    """Hold the index against the inventories, by node and instance id."""
    known = {(one.node, one.instance_id): one for one in live}
    answered = {key: one for key, one in known.items() if one.node in inventories}
    sightings = (
        Sighting(node=node, report=report, known=known.get((node, instance_id)))
        for node, held in inventories.items()
        for instance_id, report in held.items()
    )
    return Compared(
        sightings=tuple(filter(_stands_out, sightings)),
        lost=tuple(
            one for one in answered.values() if one.instance_id not in inventories[one.node]
        ),
        silent=tuple(one for key, one in known.items() if key not in answered),
        back=tuple(one for one in answered.values() if one.unreachable_since_s is not None),
    )


def is_held(report: InstanceReport) -> bool:
    """Tell whether a node holds a guest, running or not, that isn't about to lapse by itself."""
    return report.state in _LIVE and report.held is not True


def _stands_out(sighting: Sighting) -> bool:
    report, known = sighting.report, sighting.known
    if known is None:
        return is_held(report)
    if report.held is True:
        return False
    return report.state != known.state or report.attempt < known.attempt


def decide(
    sighting: Sighting,
    record: InstanceRecord | None,
    reservation: Reservation | None,
    *,
    region: str,
    now_s: float,
) -> Decision | None:
    """Decide on an instance that stands out.

    record, reservation: the instance's and its launch's, read after the inventory. now_s: epoch
    seconds.
    """
    if _is_undecided(reservation) or (record is not None and record.node is None):
        return None  # whoever decides the launch may choose another place than is written so far
    report = sighting.report
    if record is None:
        return Stray(sighting=sighting) if is_held(report) else None
    if is_held(report) and record.state in {"shutting-down", "terminated"}:
        return Order(
            action=NodeAction.TERMINATE,
            sighting=sighting,
            why=f"its record is {record.state}",
            surplus=record.state == "terminated",
        )
    here = (record.region, record.node) == (region, sighting.node)
    if here and report.attempt >= record.attempt:
        return _follow(sighting, record, now_s=now_s)
    if not is_held(report):
        return None  # it is leaving by itself
    return Order(
        action=NodeAction.RELEASE,
        sighting=sighting,
        why=f"its record is on {record.node} in {record.region}, attempt {record.attempt}",
        surplus=True,
    )


def _follow(sighting: Sighting, record: InstanceRecord, *, now_s: float) -> Decision | None:
    """Decide on an instance that is where it should be: its record follows it."""
    known, report = sighting.known, sighting.report
    if known is None or (known.state, known.attempt) != (record.state, record.attempt):
        return None  # the record has moved on since: what the node said may be older
    if record.state == "stopping" and report.state in {"pending", "running"}:
        return Order(
            action=NodeAction.STOP, sighting=sighting, why="its record is stopping", surplus=False
        )
    if report.state not in NEXT_STATES[record.state]:
        return None
    return Write(before=record, after=followed(record, report, now_s=now_s))


def decide_lost(
    lost: LiveInstance,
    record: InstanceRecord | None,
    reservation: Reservation | None,
    *,
    now_s: float,
) -> Write | None:
    """Decide on an instance that its node doesn't hold; arguments as `decide` takes them."""
    if record is None or record.state == "terminated" or _is_undecided(reservation):
        return None
    if (record.node, record.attempt) != (lost.node, lost.attempt):
        return None
    after = msgspec.structs.replace(record, state="terminated", terminated_at_s=now_s)
    if record.state != "shutting-down":  # its end has a reason already
        after = msgspec.structs.replace(
            after,
            state_reason_code="Server.InternalError",
            state_reason_message=(
                f"Server.InternalError: node {lost.node} no longer holds the instance"
            ),
        )
    return Write(before=record, after=after)


def _is_undecided(reservation: Reservation | None) -> bool:
    # Two weeks after a launch, its instances have outlived it.
    return reservation is not None and reservation.state in {"placing", "unknown"}


def due_strays(
    strays: Iterable[Stray], nodes: Mapping[str, NodeRecord], *, now_s: float
) -> list[Stray]:
    """Return those that a run before this one has seen on their nodes too."""
    return [
        one
        for one in strays
        if (node := nodes.get(one.sighting.node))
        and (first_s := node.strays.get(one.sighting.report.instance_id)) is not None
        and now_s - first_s >= STRAY_AFTER_S
    ]


def is_table_lost(*, strays_n: int, held_n: int) -> bool:
    """Tell whether a region has so many strays that not they are wrong, but the table is.

    held_n: all that its nodes hold, the strays too.
    """
    return strays_n > _STRAYS_BELIEVED and 2 * strays_n > held_n
