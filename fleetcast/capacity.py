"""How many of a type fit into what is free on a host.

The one place that answers it: tokens, admission and reports all ask here. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

if TYPE_CHECKING:
    from fleetcast.instance_types import InstanceType


class Resources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An amount of what instances use up. May be negative: a host can be over-full.

    disk_gib: 0 on a node that doesn't account for its disk.
    """

    vcpu: int
    memory_mib: int
    gpus: int = 0
    disk_gib: int = 0

    def __add__(self, other: Resources) -> Self:
        return type(self)(
            vcpu=self.vcpu + other.vcpu,
            memory_mib=self.memory_mib + other.memory_mib,
            gpus=self.gpus + other.gpus,
            disk_gib=self.disk_gib + other.disk_gib,
        )

    def __sub__(self, other: Resources) -> Self:
        return type(self)(
            vcpu=self.vcpu - other.vcpu,
            memory_mib=self.memory_mib - other.memory_mib,
            gpus=self.gpus - other.gpus,
            disk_gib=self.disk_gib - other.disk_gib,
        )


def resources_of(instance_type: InstanceType) -> Resources:
    """Return what an instance of the type has of its host, beside its disk and what runs it."""
    return Resources(
        vcpu=instance_type.vcpu,
        memory_mib=instance_type.memory_mib,
        gpus=instance_type.gpus,
    )


def how_many_fit(free: Resources, need: Resources) -> int:
    """Return how many times `need` fits into `free`, at least 0.

    need: vcpu and memory_mib are > 0 for every instance type.
    """
    fits = min(free.vcpu // need.vcpu, free.memory_mib // need.memory_mib)
    if need.gpus:
        fits = min(fits, free.gpus // need.gpus)
    if need.disk_gib:
        fits = min(fits, free.disk_gib // need.disk_gib)
    return max(fits, 0)
