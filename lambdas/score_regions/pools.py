"""Which types are asked about together for a spot placement score.

AWS scores a pool of fewer than three types low, whatever there is, and allows few different pools
a day: so types of one size share a pool. Pure.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fleetcast.instance_types import Catalogue, InstanceType

FEWEST: Final = 3
# Families with hardware that no other has: a type of another family says nothing about them.
SPECIAL: Final = re.compile(r"(dl|f|g|gr|inf|mac|p|trn|u|vt)(?=\d|-)")


def placement_pools(
    instance_types: Iterable[str], overrides: Mapping[str, tuple[str, ...]], catalogue: Catalogue
) -> dict[tuple[str, ...], list[str]]:
    """Return, by pool, the types that share it. Types that EC2 doesn't have are in none.

    overrides: pools of single types, from the configuration. The order of a pool depends on nothing
    but the catalogue, so that AWS sees the same pool each time.
    """
    pools: dict[tuple[str, ...], list[str]] = {}
    alike: defaultdict[_Kind, list[InstanceType]] = defaultdict(list)
    for known in catalogue:
        alike[_kind(known)].append(known)
    for name in instance_types:
        if name in overrides:
            pools.setdefault(tuple(sorted(set(overrides[name]))), []).append(name)
        elif name in catalogue:
            pools.setdefault(_siblings(catalogue.lookup(name), alike), []).append(name)
    return pools


class _Kind(NamedTuple):
    """What types must share to stand in for each other."""

    special: str
    gpus: int
    architectures: tuple[str, ...]
    vcpu: int
    memory_mib: int


def _kind(instance_type: InstanceType) -> _Kind:
    special = SPECIAL.match(instance_type.family)
    return _Kind(
        special[1] if special else "",
        instance_type.gpus,
        # i386 beside x86_64 means old, not different.
        tuple(sorted(set(instance_type.architectures) - {"i386"})),
        instance_type.vcpu,
        instance_type.memory_mib,
    )


def _siblings(
    wanted: InstanceType, alike: Mapping[_Kind, Sequence[InstanceType]]
) -> tuple[str, ...]:
    """Return the types of the same kind, or the nearest ones if they are too few."""
    kind = _kind(wanted)
    if len(alike[kind]) >= FEWEST:
        return tuple(other.name for other in alike[kind])
    nearest = sorted((_distance(kind, near), near) for near in alike)
    names = [other.name for _, near in nearest for other in alike[near]]
    return tuple(sorted(names[:FEWEST]))


def _distance(wanted: _Kind, other: _Kind) -> tuple[bool, bool, float]:
    """How badly another kind stands in: by hardware first, then by size, in doublings."""
    return (
        other.special != wanted.special or other.architectures != wanted.architectures,
        other.gpus != wanted.gpus,
        abs(math.log2(wanted.vcpu / other.vcpu))
        + abs(math.log2(wanted.memory_mib / other.memory_mib)),
    )
