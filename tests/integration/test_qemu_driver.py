"""Real guests of the QEMU driver, emulated: what happens to them, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder, GuestRecord
from fleetcast.agent.drivers.qemu.qemu_process import QemuProcess, is_free
from fleetcast.agent.drivers.qemu.settings import QemuSettings
from fleetcast.local.qemu_guests import guest_pids
from tests.eventually import eventually
from tests.qemu_node import UP_WITHIN_S, console_shows, qemu_driver, small_guest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fleetcast.agent.drivers.qemu.driver import QemuDriver

pytestmark = pytest.mark.host_packages


class Node:
    """A state folder, and the drivers of the agents that have it one after the other."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.driver: QemuDriver = qemu_driver(state_dir)

    async def next_agent(self, settings: QemuSettings | None = None) -> QemuDriver:
        """Let go as a killed agent does, and start another."""
        await self.driver.leave()
        self.driver = qemu_driver(self.state_dir, settings)
        return self.driver

    def folder(self, instance_id: str) -> GuestFolder:
        return GuestFolder(self.state_dir / "guests" / instance_id)

    def pid(self, instance_id: str) -> int:
        return int(self.folder(instance_id).pid.read_text())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    # A comma ends an option for QEMU, and the kernel takes only short paths for sockets.
    async with _node(tmp_path / f"a, file=folder {'of a long name ' * 5}") as node:
        yield node


@asynccontextmanager
async def _node(state_dir: Path) -> AsyncIterator[Node]:
    node = Node(state_dir)
    try:
        yield node
    finally:
        for instance_id in await node.driver.alive():
            pid = node.pid(instance_id)
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda pid=pid: _is_gone(pid))  # type: ignore[misc]
        await node.driver.leave()


async def _is_gone(pid: int) -> bool:
    """Say whether a process has ended, and whoever began it has taken note."""
    return not psutil.pid_exists(pid)


async def test_a_guest_keeps_its_disk_until_it_is_destroyed_and_then_leaves_nothing(
    node: Node,
) -> None:
    driver, guest = node.driver, small_guest(1, root_disk_gib=1)
    # An agent was killed before it had made the disk.
    folder = node.folder(guest.instance_id)
    folder.make()
    folder.write_record(GuestRecord(guest=guest, image_format="raw", firmware="bios"))
    folder.disk.with_suffix(".new").write_bytes(b"half a disk")
    await driver.boot(guest)
    console = await console_shows(driver, guest.instance_id, "guest: ready")
    assert f"root disk {2**30} bytes" in console
    await driver.reboot(guest.instance_id)
    await console_shows(driver, guest.instance_id, "guest: boot 2")
    await driver.stop(guest.instance_id)
    stopped = await driver.console_output(guest.instance_id)
    assert stopped is not None
    assert b"guest: ends" in stopped.output  # it was asked, not cut off
    driver = await node.next_agent()
    assert await driver.console_output(guest.instance_id) == stopped
    await driver.boot(guest)
    await console_shows(driver, guest.instance_id, "guest: boot 3")
    await driver.destroy(guest.instance_id)
    assert await driver.alive() == {}
    assert list((node.state_dir / "guests").iterdir()) == []


async def test_a_running_guest_is_taken_over_by_the_next_agent_and_shares_its_disk_with_nobody(
    node: Node,
) -> None:
    guest = small_guest(1, user_data="#!/bin/sh\necho secret-word\n", tags={"a": "b"})
    await node.driver.boot(guest)
    pid = node.pid(guest.instance_id)
    folder = node.folder(guest.instance_id)
    driver = await node.next_agent()
    assert await driver.alive() == {guest.instance_id: guest}
    await driver.boot(guest)
    assert node.pid(guest.instance_id) == pid
    again = await asyncio.to_thread(
        lambda: subprocess.run(_command_of(pid), capture_output=True, text=True, check=False)
    )
    assert again.returncode != 0
    assert "lock" in again.stderr
    assert not is_free(folder.disk)
    assert "secret-word" not in " ".join(_command_of(pid))
    assert folder.path.stat().st_mode & 0o077 == 0
    os.kill(pid, signal.SIGKILL)
    end = await asyncio.wait_for(driver.next_end(), UP_WITHIN_S)
    assert (end.instance_id, end.how) == (guest.instance_id, "crashed")
    assert await driver.alive() == {}
    assert is_free(folder.disk)


async def test_a_guest_is_told_about_itself_by_the_next_agent_too(node: Node) -> None:
    asks = "while sleep 1; do echo told $(imds meta-data/instance-id); done &"
    guest = small_guest(1, user_data=f"#!/bin/sh\n{asks}\n")
    await node.driver.boot(guest)
    told = f"told {guest.instance_id}"
    before = await console_shows(node.driver, guest.instance_id, told)
    driver = await node.next_agent()
    assert await driver.alive() == {guest.instance_id: guest}
    # Two more: the first may have been told by the agent before.
    await console_shows(driver, guest.instance_id, told, times=before.count(told) + 2)


async def test_a_crashed_kernel_is_told_and_its_console_kept(node: Node) -> None:
    driver = node.driver
    guest = small_guest(1, user_data="#!/bin/sh\necho c > /proc/sysrq-trigger\n")
    await driver.boot(guest)
    driver = await node.next_agent()  # the crash may come before, between or after
    assert await driver.alive() == {guest.instance_id: guest}
    end = await asyncio.wait_for(driver.next_end(), UP_WITHIN_S)
    assert (end.instance_id, end.how) == (guest.instance_id, "crashed")
    assert await driver.alive() == {guest.instance_id: guest}
    await driver.stop(guest.instance_id)
    assert await driver.alive() == {}
    await console_shows(driver, guest.instance_id, "sysrq triggered crash")


async def test_a_guest_whose_qemu_is_wedged_is_alive_and_can_still_be_ended(node: Node) -> None:
    guest = small_guest(1)
    await node.driver.boot(guest)
    pid = node.pid(guest.instance_id)
    os.kill(pid, signal.SIGSTOP)
    driver = await node.next_agent(QemuSettings(accelerator="tcg", shutdown_timeout_s=1))
    assert await driver.alive() == {guest.instance_id: guest}
    await driver.stop(guest.instance_id)
    assert QemuProcess.of_pid_file(node.folder(guest.instance_id).pid) is None
    assert await driver.alive() == {}
    await driver.boot(guest)
    assert node.pid(guest.instance_id) != pid


@pytest.mark.parametrize("given_up_after_s", [0.0, 0.05, 0.1, 0.2])
async def test_a_boot_that_is_given_up_at_any_moment_leaves_nothing_behind(
    node: Node, given_up_after_s: float
) -> None:
    guest = small_guest(1)
    boot = asyncio.create_task(node.driver.boot(guest))
    await asyncio.wait([boot], timeout=given_up_after_s)
    boot.cancel()
    await asyncio.wait([boot])
    driver = await node.next_agent(QemuSettings(accelerator="tcg", shutdown_timeout_s=1))
    await driver.destroy(guest.instance_id)
    assert await driver.alive() == {}
    assert list((node.state_dir / "guests").iterdir()) == []

    async def qemu() -> list[int]:
        return guest_pids(node.state_dir)

    # One that had only just been begun found no disk.
    await eventually(qemu, lambda pids: pids == [])
    assert list((node.state_dir / "guests").iterdir()) == []


_BOOTS_A_GUEST: Final = """
import asyncio, sys
from pathlib import Path
from tests.qemu_node import qemu_driver, small_guest

async def boot():
    driver = qemu_driver(Path(sys.argv[1]))
    print("about to", flush=True)
    await driver.boot(small_guest(1))
    await asyncio.sleep(100)

asyncio.run(boot())
"""


@pytest.mark.parametrize("killed_after_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
async def test_the_next_agent_goes_on_where_one_was_killed_in_a_boot(
    tmp_path: Path, killed_after_s: float
) -> None:
    command = [sys.executable, "-B", "-c", _BOOTS_A_GUEST, str(tmp_path)]
    agent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert agent.stdout is not None
    await agent.stdout.readline()
    await asyncio.wait([asyncio.create_task(agent.wait())], timeout=killed_after_s)
    agent.kill()
    await agent.wait()
    guest = small_guest(1)
    async with _node(tmp_path) as node:
        found = await node.driver.alive()
        pids = guest_pids(tmp_path)
        await node.driver.boot(guest)
        assert len(guest_pids(tmp_path)) == 1
        if found:
            assert guest_pids(tmp_path) == pids
        assert await node.driver.alive() == {guest.instance_id: guest}


async def test_a_guest_that_cannot_be_started_says_why_and_leaves_nothing(node: Node) -> None:
    guest = small_guest(1, memory_mib=2**30)
    with pytest.raises(BootFailed, match="memory") as failure:
        await node.driver.boot(guest)
    assert str(node.state_dir) not in str(failure.value)
    assert list((node.state_dir / "guests").iterdir()) == []


@pytest.fixture
async def small_node(tmp_path: Path) -> AsyncIterator[Node]:
    with _small_disk(tmp_path / "small") as state_dir:
        async with _node(state_dir) as node:
            yield node


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_guest_waits_while_the_hosts_disk_is_full_and_then_goes_on(
    small_node: Node,
) -> None:
    driver = small_node.driver
    write = "dd if=/dev/zero of=/disk/much bs=1M count=5; sync; echo it is wr''itten"
    guest = small_guest(1, user_data=f"#!/bin/sh\n{write}\n")
    await driver.boot(guest)
    filler = small_node.state_dir / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(bytes(64 * 2**20))
    for left_kib in (0, 40, 100, 260):  # for its record, its disk's head and body, its seed
        os.truncate(filler, filler.stat().st_size - left_kib * 1024)
        with pytest.raises(BootFailed, match="No space left") as failure:
            await driver.boot(small_guest(2))
        assert str(small_node.state_dir) not in str(failure.value)
        assert not small_node.folder(small_guest(2).instance_id).path.exists()
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(64 * 2**20))

    async def run_state() -> str | None:
        (running,) = driver._running.values()  # noqa: SLF001 - not an end, so nobody is told
        return running.run_state

    await eventually(run_state, lambda state: state == "io-error", within_s=UP_WITHIN_S)
    assert await driver.alive() == {guest.instance_id: guest}
    filler.unlink()
    await console_shows(driver, guest.instance_id, "it is written")


def _command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
