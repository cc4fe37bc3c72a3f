"""What this host has, as its kernel says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import psutil

from fleetcast.agent.capacity.cgroup_limits import CgroupLimits, cgroup_limits

if TYPE_CHECKING:
    from pathlib import Path


class HostState(NamedTuple):
    """A host at one moment.

    cores: physical ones that this process may use. memory_mib, available_mib: as /proc/meminfo has
    MemTotal and MemAvailable. disk_free_mib: of the file system that guests are on. limits:
    what guests may have of the host.
    """

    cores: int
    memory_mib: int
    available_mib: int
    disk_free_mib: int
    limits: CgroupLimits


class Host:
    """This host. folder: where its guests' disks are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        usable_n = len(os.sched_getaffinity(0))
        self._cores = min(psutil.cpu_count(logical=False) or usable_n, usable_n)

    def state(self) -> HostState:
        """Look at it now; takes less than a millisecond. Raises OSError if it can't be read."""
        memory = psutil.virtual_memory()
        return HostState(
            cores=self._cores,
            memory_mib=memory.total // 2**20,
            available_mib=memory.available // 2**20,
            disk_free_mib=psutil.disk_usage(str(self._folder)).free // 2**20,
            limits=cgroup_limits(),
        )
