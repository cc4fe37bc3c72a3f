"""What instances may use of a host, from what is configured and what is measured. Pure.

Two gates stand before a launch. The first is the ledger: what the host has for instances, less
what is booked for those that it holds. The second is memory that is really free: other programs
may use more than was reserved for them. It withholds room, and books nothing: when the others have
gone, the room is back.

The second gate must not mistake the node's own guests for others. A guest touches its memory bit
by bit. What is booked for it and not yet taken still counts as available to the kernel, so it is
subtracted; what it has taken the kernel has subtracted already:

    really free = available - sum over guests of max(booked - taken, 0)

As long as all others stay within the reserve, that is no less than what the ledger has, and
withholds nothing. Disk needs no second gate: what a host has for guests is what is free on it and
what of it they have taken already, so it shrinks and grows as others come and go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetcast.capacity import Resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.agent.capacity.host import HostState
    from fleetcast.agent.capacity.settings import CapacitySettings
    from fleetcast.agent.drivers import GuestUse

_LEAST_RESERVE_MIB: Final = 1_024
_RESERVED_PART: Final = 20
# What is withheld moves in steps of this: the least change of the host would be news otherwise.
_STEP_MIB: Final = 64


def host_capacity(
    settings: CapacitySettings, host: HostState, *, gpus: int, taken_disk_mib: int = 0
) -> Resources:
    """Return what all instances together may use of a real host.

    gpus: those that it can give. taken_disk_mib: what its guests have taken of the disk already.
    """
    disk_mib = host.disk_free_mib + taken_disk_mib
    cores = min(host.cores, host.limits.cpus or host.cores)
    memory_mib = min(
        host.memory_mib - _reserve_memory_mib(settings, host),
        host.memory_mib if host.limits.memory_mib is None else host.limits.memory_mib,
    )
    return Resources(
        vcpu=_capped(int(cores * settings.vcpu_per_core) - settings.reserve_vcpu, settings.vcpu),
        memory_mib=_capped(memory_mib, settings.memory_mib),
        gpus=_capped(gpus, settings.gpus),
        disk_gib=_capped(disk_mib // 1_024 - settings.reserve_disk_gib, settings.disk_gib),
    )


def simulated_capacity(settings: CapacitySettings, host: HostState) -> Resources:
    """Return what simulated instances may use: what is configured; what isn't, as the host has it.

    They use nothing of the host, so it may be more than the host has. Disk and GPUs only if
    configured.
    """
    measured = host_capacity(settings, host, gpus=0)
    return Resources(
        vcpu=settings.vcpu or measured.vcpu,
        memory_mib=settings.memory_mib or measured.memory_mib,
        gpus=settings.gpus or 0,
        disk_gib=settings.disk_gib or 0,
    )


def taken_disk_mib(booked: Mapping[str, Resources], taken: Mapping[str, GuestUse]) -> int:
    """Return how much disk guests have of what is booked for them. Arguments as `withheld_mib`."""
    return sum(
        min(use.disk_mib, booked[instance_id].disk_gib * 1_024)
        for instance_id, use in taken.items()
        if instance_id in booked
    )


def withheld_mib(
    host: HostState,
    *,
    total: Resources,
    booked: Mapping[str, Resources],
    taken: Mapping[str, GuestUse],
) -> int:
    """Return how much memory that the ledger has as free is not really free, >= 0.

    booked: by instance. taken: what guests really use by now, of those that run.
    """
    booked_mib = untaken_mib = 0
    for instance_id, need in booked.items():
        use = taken.get(instance_id)
        booked_mib += need.memory_mib
        untaken_mib += max(need.memory_mib - (use.memory_mib if use else 0), 0)
    really_free_mib = host.available_mib - untaken_mib
    missing_mib = max(total.memory_mib - booked_mib - really_free_mib, 0)
    return -(-missing_mib // _STEP_MIB) * _STEP_MIB


def _reserve_memory_mib(settings: CapacitySettings, host: HostState) -> int:
    if settings.reserve_memory_mib is not None:
        return settings.reserve_memory_mib
    return max(_LEAST_RESERVE_MIB, host.memory_mib // _RESERVED_PART)


def _capped(measured: int, limit: int | None) -> int:
    return max(measured if limit is None else min(measured, limit), 0)
