"""Whose a pid file and a disk are, as the kernel says: with processes that lock as QEMU does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.drivers.qemu.qemu_process import QemuProcess, is_free

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# As QEMU: a lock of the process on the pid file, a lock of the open file on the disk.
_HOLDER = """
import fcntl, os, struct, sys, time
pid_file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(pid_file, fcntl.LOCK_EX)
os.write(pid_file, b"1\\n")
disk = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
fcntl.fcntl(disk, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_RDLCK, 0, 100, 1, 0))
print("locked", flush=True)
time.sleep(100)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "pid"), str(tmp_path / "disk")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


async def test_the_process_that_has_locked_a_pid_file_is_found_whatever_the_file_says(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    found = QemuProcess.of_pid_file(tmp_path / "pid")
    assert found is not None
    assert found.pid == holder.pid
    assert not found.has_ended
    assert not await found.ended(within_s=0)
    found.kill()
    assert await found.ended(within_s=10)
    assert holder.wait() == -signal.SIGKILL
    found.kill()  # nothing to do, and nobody else is hit
    found.close()
    assert QemuProcess.of_pid_file(tmp_path / "pid") is None


async def test_a_pid_file_that_nobody_has_locked_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    assert QemuProcess.of_pid_file(path) is None
    path.write_text(f"{os.getpid()}\n")
    assert QemuProcess.of_pid_file(path) is None


async def test_who_waits_for_an_end_is_called_when_it_comes(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    found = QemuProcess.of_pid_file(tmp_path / "pid")
    assert found is not None
    called = asyncio.Event()
    found.call_when_ended(called.set)
    holder.kill()
    await asyncio.wait_for(called.wait(), 10)
    found.close()


async def test_a_process_that_has_gone_is_none() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])  # noqa: ASYNC220 - it ends by itself
    gone.wait()
    assert QemuProcess.of_pid(gone.pid) is None


def test_a_disk_is_free_when_no_process_has_a_lock_on_any_part_of_it(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    assert not is_free(tmp_path / "disk")
    holder.kill()
    holder.wait()
    assert is_free(tmp_path / "disk")
    assert is_free(tmp_path / "none")
