"""What the kernel lets guests have, where a limit is set on the control group that they are in.

On a node where the agent was installed guests are in a slice of their own; anywhere else they are
where the agent is. A limit of any group above counts too. Versions 1 and 2 of control groups.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_AGENT_UNIT: Final = "/fleetcast-agent.service"
_GUESTS_SLICE: Final = "/fleetcast.slice/fleetcast-guests.slice"
_GROUPS: Final = "sys/fs/cgroup"
# The agent itself, where it shares its guests' limit.
_AGENT_MIB: Final = 256


class CgroupLimits(NamedTuple):
    """memory_mib: of all guests together. cpus: in CPUs' worth of time. None: no limit."""

    memory_mib: int | None
    cpus: float | None


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the limits that guests of this process are under. root: where /proc and /sys are."""
    memory_mib: list[int] = []
    cpus: list[float] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        has_slice = _AGENT_UNIT in path
        guests = _GUESTS_SLICE if has_slice else path
        shared_mib = 0 if has_slice else _AGENT_MIB
        memory_mib += [
            max(limit // 2**20 - shared_mib, 0)
            for limit in _memory_limits(root, controllers, guests)
        ]
        cpus += _cpu_limits(root, controllers, guests)
    return CgroupLimits(min(memory_mib, default=None), min(cpus, default=None))


def _memory_limits(root: Path, controllers: str, path: str) -> Iterator[int]:
    if not controllers:
        base, name = root / _GROUPS, "memory.max"
    elif "memory" in controllers.split(","):
        base, name = root / _GROUPS / "memory", "memory.limit_in_bytes"
    else:
        return
    for group in _upwards(base, path):
        limit = _text(group / name).strip()
        if limit.isdigit():  # "max" is none
            yield int(limit)


def _cpu_limits(root: Path, controllers: str, path: str) -> Iterator[float]:
    if not controllers:
        for group in _upwards(root / _GROUPS, path):
            quota, _, period = _text(group / "cpu.max").strip().partition(" ")
            if quota.isdigit() and period.isdigit():
                yield int(quota) / int(period)
    elif "cpu" in controllers.split(","):
        for group in _upwards(root / _GROUPS / "cpu", path):
            quota = _text(group / "cpu.cfs_quota_us").strip()
            period = _text(group / "cpu.cfs_period_us").strip()
            if quota.isdigit() and period.isdigit():  # -1 is none
                yield int(quota) / int(period)


def _upwards(base: Path, path: str) -> Iterator[Path]:
    """Return a group and all above it. In a container its path may name what is not there."""
    group = base / path.lstrip("/")
    yield group
    while group != base:
        group = group.parent
        yield group


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:  # another version of control groups, or none at all
        return ""
