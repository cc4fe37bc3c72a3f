"""What control groups allow guests, in trees as the two versions of them lay them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.capacity.cgroup_limits import CgroupLimits, cgroup_limits

if TYPE_CHECKING:
    from pathlib import Path

_IN_A_UNIT = "0::/fleetcast.slice/fleetcast-agent.service\n"
_SLICE = "fleetcast.slice/fleetcast-guests.slice"
_GIB = 2**30


def _host(root: Path, memberships: str, files: dict[str, str]) -> Path:
    for name, content in {"proc/self/cgroup": memberships, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_a_host_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path) == CgroupLimits(None, None)


def test_guests_of_an_installed_agent_are_limited_by_their_own_slice(tmp_path: Path) -> None:
    files = {
        f"sys/fs/cgroup/{_SLICE}/memory.max": f"{8 * _GIB}\n",
        f"sys/fs/cgroup/{_SLICE}/cpu.max": "150000 100000\n",
        # The agent's own, which no guest is in.
        "sys/fs/cgroup/fleetcast.slice/fleetcast-agent.service/memory.max": f"{_GIB}\n",
    }
    assert cgroup_limits(_host(tmp_path, _IN_A_UNIT, files)) == CgroupLimits(8_192, 1.5)


def test_a_limit_above_the_slice_counts_too(tmp_path: Path) -> None:
    files = {
        f"sys/fs/cgroup/{_SLICE}/memory.max": "max\n",
        f"sys/fs/cgroup/{_SLICE}/cpu.max": "max 100000\n",
        "sys/fs/cgroup/fleetcast.slice/memory.max": f"{4 * _GIB}\n",
        "sys/fs/cgroup/fleetcast.slice/cpu.max": "200000 100000\n",
    }
    assert cgroup_limits(_host(tmp_path, _IN_A_UNIT, files)) == CgroupLimits(4_096, 2.0)


@pytest.mark.parametrize("path", ["/", "/container/of/another/name"])
def test_in_a_container_guests_share_its_limit_with_the_agent(tmp_path: Path, path: str) -> None:
    files = {
        "sys/fs/cgroup/memory.max": f"{4 * _GIB}\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    limits = cgroup_limits(_host(tmp_path, f"0::{path}\n", files))
    assert limits == CgroupLimits(4_096 - 256, 4.0)


def test_version_1_limits_are_read_from_each_controllers_tree(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/vms/memory.limit_in_bytes": f"{2 * _GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/vms/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/vms/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    memberships = "4:memory:/vms\n2:cpu,cpuacct:/vms\n1:name=systemd:/vms\n0::/vms\n"
    limits = cgroup_limits(_host(tmp_path, memberships, files))
    assert limits == CgroupLimits(2_048 - 256, 0.5)
