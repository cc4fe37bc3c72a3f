"""What is kept of a node from one run to the next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lambdas.reconcile.decisions import is_held
from lambdas.records import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from lambdas.reconcile.nodes import Heard

# A node without instances that was silent for longer is gone.
_FORGOTTEN_AFTER_S: Final = 86_400.0
# Of more than these, the others are noted once these are gone.
_STRAYS_KEPT: Final = 200


def node_record(
    region: str,
    node: str,
    heard: Heard,
    *,
    before: NodeRecord | None,
    strays: Iterable[str],
    now_s: float,
) -> NodeRecord:
    """Make the record of a node that answered.

    before: its last one. What it was asked for and didn't answer this time stays as it was there.
    strays: the instances without a record that it holds. now_s: epoch seconds.
    """
    since = before.strays if before else {}
    first_seen_s = {one: since.get(one, now_s) for one in strays}
    kept = sorted(first_seen_s.items(), key=lambda item: (item[1], item[0]))[:_STRAYS_KEPT]
    record = msgspec.structs.replace(
        before or NodeRecord(region=region, node=node, last_seen_s=now_s),
        last_seen_s=now_s,
        instances_n=sum(map(is_held, heard.inventories[node].values())),
        strays=dict(kept),
    )
    capacity = heard.capacities.get(node)
    if capacity is None:
        return record
    return msgspec.structs.replace(
        record,
        zone=capacity.zone,
        closed=capacity.closed,
        version=None if capacity.version is msgspec.UNSET else capacity.version,
        total=capacity.total,
        free=capacity.free,
        room=capacity.room,
        clock_skew_ms=heard.clock_skews_ms.get(node),
    )


def forgotten(
    recorded: Sequence[NodeRecord], *, heard: Heard, occupied: AbstractSet[str], now_s: float
) -> list[NodeRecord]:
    """Return those that have been silent for a day. occupied: nodes with instances on record."""
    return [
        one
        for one in recorded
        if one.node not in heard.inventories
        and one.node not in occupied
        and now_s - one.last_seen_s >= _FORGOTTEN_AFTER_S
    ]
