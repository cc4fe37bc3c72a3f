"""Becomes a guest's process inside its unit: `python -I -m fleetcast.agent.guest_launcher ID`.

systemd starts it in `fleetcast-guest@ID.service`. It reads the order that the agent has left,
sets the guest's limits on the cgroup that systemd has given to it, and executes the command in its
place. It imports nothing but the standard library: each guest's start waits for it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

ORDERS: Final = Path("/run/fleetcast/guests")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_PERIOD_US: Final = 100_000


def main() -> None:
    """Carry out the order for the instance named on the command line; return never."""
    order_path = ORDERS / f"{sys.argv[1]}.json"
    order = json.loads(order_path.read_bytes())
    order_path.unlink()
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        _limit(own_cgroup(Path("/proc/self/cgroup").read_text(encoding="utf-8")), order)
    except OSError as problem:
        # A guest without limits is better than none: the ledger has counted it all the same.
        sys.stderr.write(f"the guest runs without limits of its own: {problem}\n")
        sys.stderr.flush()
    os.execv(order["command"][0], order["command"])  # noqa: S606 - it is to take this one's place


def own_cgroup(memberships: str) -> Path:
    """Return the folder of the cgroup that /proc/self/cgroup names. Raises OSError without one."""
    for line in memberships.splitlines():
        if line.startswith("0::/"):
            return _CGROUPS / line.removeprefix("0::/")
    raise OSError("this host has no unified cgroups")


def _limit(unit: Path, order: dict[str, Any]) -> None:
    """Move this process into a cgroup below its unit's, and limit that one.

    The unit's own limits are systemd's to set, not the agent's.
    """
    guest = unit / "guest"
    guest.mkdir(exist_ok=True)
    (guest / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    (unit / "cgroup.subtree_control").write_text("+memory +cpu", encoding="ascii")
    (guest / "memory.max").write_text(str(order["memory_max_mib"] * 1024**2), encoding="ascii")
    quota_us = order["cpus_max"] * _PERIOD_US
    (guest / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}", encoding="ascii")


if __name__ == "__main__":
    main()
