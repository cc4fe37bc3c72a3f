"""Child processes: none outlives its parent, and one that fails says why."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fleetcast.local.conditions import wait_until
from fleetcast.local.processes import Processes, ProcessFailed
from fleetcast.local.stack_lock import StackAlreadyRunning, held_lock, lock_holder

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20.0
# Holds a lock for as long as it lives, which the kernel alone decides.
HOLDER = """
import os, pathlib, signal, sys
from fleetcast.local.stack_lock import held_lock
with held_lock(pathlib.Path(sys.argv[1]), pid=os.getpid()):
    signal.pause()
"""
# A parent whose child starts the holder, as an emulator starts functions.
PARENT = """
import pathlib, signal, sys
from fleetcast.local.processes import Processes
with Processes() as processes:
    starter = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    processes.start(
        "starter",
        [sys.executable, "-c", starter, *sys.argv[1:]],
        log=pathlib.Path(sys.argv[2]) / "log",
    )
    signal.pause()
"""


def holder_of(directory: Path) -> list[str]:
    return [sys.executable, "-c", HOLDER, str(directory)]


def is_held(directory: Path) -> bool:
    return lock_holder(directory) is not None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_and_theirs_end_when_the_parent_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, HOLDER, str(tmp_path)]) as parent:
        try:
            assert wait_until(lambda: is_held(tmp_path), DEADLINE_S)
        finally:
            parent.send_signal(number)
    assert wait_until(lambda: not is_held(tmp_path), DEADLINE_S)


def test_children_end_with_the_block_even_when_it_fails(tmp_path: Path) -> None:
    def fail_with_a_child() -> None:
        with Processes() as processes:
            child = processes.start("holder", holder_of(tmp_path), log=tmp_path / "log")
            child.wait_until(lambda: lock_holder(tmp_path) == child.pid, within_s=DEADLINE_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_a_child()
    assert not is_held(tmp_path)


def test_a_child_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    script = "import sys; print('no such region'); sys.exit(3)"
    with Processes() as processes:
        child = processes.start("agent n1", [sys.executable, "-c", script], log=tmp_path / "log")
        with pytest.raises(ProcessFailed) as failed:
            child.wait_until(lambda: False, within_s=DEADLINE_S)
    message = str(failed.value)
    assert message.startswith("agent n1 ended with exit code 3:\n  no such region")
    assert str(tmp_path / "log") in message


def test_a_child_that_never_becomes_ready_is_reported(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start("holder", holder_of(tmp_path), log=tmp_path / "log")
        with pytest.raises(ProcessFailed, match=r"holder was not ready within 0 s"):
            child.wait_until(lambda: False, within_s=0)


def test_a_directory_has_one_stack_at_a_time(tmp_path: Path) -> None:
    with Processes() as processes:
        child = processes.start("holder", holder_of(tmp_path), log=tmp_path / "log")
        child.wait_until(lambda: is_held(tmp_path), within_s=DEADLINE_S)
        with (
            pytest.raises(StackAlreadyRunning, match="make local-down"),
            held_lock(tmp_path, pid=1),
        ):
            pass
        assert wait_until(lambda: lock_holder(tmp_path) == child.pid, DEADLINE_S)
        child.kill()
        with held_lock(tmp_path, pid=1):
            pass
