"""A guest's process is begun apart from the agent, by systemd where that is its manager."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.guest_launcher import own_cgroup
from fleetcast.agent.guest_processes import GuestChildren, GuestUnits, guest_processes, guest_unit
from tests.agent_parts import instance_id
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

_GUEST: Final = instance_id(1)
_SAY_WHO_AND_STAY: Final = (
    "import os, sys, time; print(os.getpid(), os.getsid(0), *sys.argv[1:], flush=True);"
    "time.sleep(600)"
)


async def _begin_child(output: Path, *command: str) -> int:
    return await GuestChildren().begin(_GUEST, command, output=output, memory_max_mib=64, vcpu=1)


def _gives_way_as_a_session(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii").endswith("nice 5\n")
    except FileNotFoundError:
        return True  # this kernel divides CPU among processes alone


async def test_a_child_heads_a_session_of_its_own_and_gets_its_arguments_as_they_are(
    tmp_path: Path,
) -> None:
    hostile = "$(touch x); 'a b'\n--"
    output = tmp_path / "output"
    begun = await _begin_child(output, sys.executable, "-c", _SAY_WHO_AND_STAY, hostile)

    async def said() -> str:
        return output.read_text(encoding="utf-8")

    pid, session, *rest = (await eventually(said)).split(" ", 2)
    try:
        assert pid == session == str(begun)
        assert rest == [hostile + "\n"]
        assert os.getpriority(os.PRIO_PROCESS, int(pid)) > os.getpriority(os.PRIO_PROCESS, 0)
        assert _gives_way_as_a_session(begun)
    finally:
        os.kill(int(pid), signal.SIGKILL)

    async def is_gone() -> bool:
        return not psutil.pid_exists(int(pid))

    await eventually(is_gone)


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")  # that it outlives is the point
def test_a_child_outlives_the_event_loop_that_began_it(tmp_path: Path) -> None:
    output = tmp_path / "output"

    pid = asyncio.run(_begin_child(output, sys.executable, "-c", _SAY_WHO_AND_STAY))
    os.kill(pid, 0)  # raises when it isn't there
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    gc.collect()


async def test_a_program_that_is_not_there_fails_the_boot(tmp_path: Path) -> None:
    with pytest.raises(BootFailed, match=_GUEST):
        await _begin_child(tmp_path / "no folder" / "output", "/bin/true")


# --- units ---------------------------------------------------------------------------------


def _systemctl(folder: Path, script: str) -> str:
    """Make a systemctl that notes how it was called."""
    path = folder / "systemctl"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/called\n{script}\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


async def _begin_unit(folder: Path, script: str, command: Sequence[str] = ("/bin/true",)) -> int:
    units = GuestUnits(orders=folder / "orders", systemctl=_systemctl(folder, script))
    return await units.begin(_GUEST, command, output=folder / "output", memory_max_mib=600, vcpu=2)


async def test_a_unit_is_started_by_its_instances_name_and_finds_its_order(tmp_path: Path) -> None:
    assert await _begin_unit(tmp_path, "echo 17", ("/usr/bin/qemu", "-name", "a b")) == 17
    called = (tmp_path / "called").read_text(encoding="utf-8").splitlines()
    assert called[0] == f"--no-ask-password start fleetcast-guest@{_GUEST}.service"
    (order_path,) = (tmp_path / "orders").iterdir()
    assert order_path.name == f"{_GUEST}.json"
    assert stat.S_IMODE(order_path.stat().st_mode) == 0o600
    assert json.loads(order_path.read_bytes()) == {
        "command": ["/usr/bin/qemu", "-name", "a b"],
        "output": str(tmp_path / "output"),
        "memory_max_mib": 600,
        "cpus_max": 3,
    }


async def test_what_systemd_refuses_fails_the_boot_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(BootFailed, match=f"{_GUEST}.*Access denied"):
        await _begin_unit(tmp_path, "echo 'Access denied' >&2; exit 4")


async def test_a_unit_that_has_ended_at_once_fails_the_boot(tmp_path: Path) -> None:
    with pytest.raises(BootFailed, match="ended at once"):
        await _begin_unit(tmp_path, "echo 0")


@pytest.mark.parametrize("name", ["i-1/../../x", "../x", "i-0000000000 x", "", "I-00000000"])
def test_no_hostile_id_names_a_unit(name: str) -> None:
    with pytest.raises(BootFailed, match="no instance id"):
        guest_unit(name)


def test_outside_of_its_unit_an_agent_begins_children() -> None:
    assert isinstance(guest_processes(), GuestChildren)


def test_the_launcher_carries_out_its_order_once_and_says_what_limits_it_can_not_set(
    tmp_path: Path,
) -> None:
    output, orders = tmp_path / "output", tmp_path / "orders"
    orders.mkdir()
    order = {
        "command": ["/bin/echo", "a  b", "$HOME"],
        "output": str(output),
        "memory_max_mib": 64,
        "cpus_max": 1,
    }
    (orders / f"{_GUEST}.json").write_text(json.dumps(order), encoding="utf-8")
    launch = (
        "import sys, pathlib; from fleetcast.agent import guest_launcher as it;"
        f"it.ORDERS = pathlib.Path({str(orders)!r});"
        "it.own_cgroup = lambda _: pathlib.Path('/nowhere'); it.main()"
    )
    subprocess.run([sys.executable, "-c", launch, _GUEST], check=True)
    said, echoed = output.read_text(encoding="utf-8").splitlines()
    assert said.startswith("the guest runs without limits of its own: ")
    assert echoed == "a  b $HOME"
    assert not list(orders.iterdir())


def test_the_launcher_finds_the_cgroup_of_its_unit() -> None:
    memberships = "1:name=systemd:/x\n0::/fleetcast.slice/fleetcast-guest@i-1.service\n"
    assert own_cgroup(memberships) == Path(
        "/sys/fs/cgroup/fleetcast.slice/fleetcast-guest@i-1.service"
    )
    with pytest.raises(OSError, match="no unified cgroups"):
        own_cgroup("1:name=systemd:/x\n")
