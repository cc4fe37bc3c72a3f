"""The local stack as a background process: started detached, found again by its lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from fleetcast.errors import FleetcastError
from fleetcast.local.conditions import wait_until
from fleetcast.local.progress import step
from fleetcast.local.stack_file import LOCAL_DIRECTORY, StackFile
from fleetcast.local.stack_lock import StackAlreadyRunning, lock_holder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_START_DEADLINE_S: Final = 240.0
_STOP_DEADLINE_S: Final = 60.0
_LOG_TAIL_LINES: Final = 20


class BackgroundFailed(FleetcastError):
    """The background process didn't come up or go down; the message has its output."""


def start(arguments: Sequence[str], *, directory: Path = LOCAL_DIRECTORY) -> StackFile:
    """Run `python -m fleetcast.local ARGUMENTS` detached; return when the stack answers.

    Raises StackAlreadyRunning or BackgroundFailed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stack_file, log = directory / "stack.json", directory / "background.log"
    if lock_holder(directory) is not None:
        raise StackAlreadyRunning(directory)
    stack_file.unlink(missing_ok=True)  # left by one that was killed
    with step("Starting the local stack in the background") as note, log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleetcast.local", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def answers() -> bool:
            note(_last_line(log))
            return lock_holder(directory) == process.pid and stack_file.exists()

        came_up = False
        try:
            wait_until(lambda: process.poll() is not None or answers(), _START_DEADLINE_S)
            came_up = answers()
        finally:
            if not came_up:  # Ctrl-C, too
                process.terminate()
                process.wait()
        if not came_up:
            lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            raise BackgroundFailed("\n".join([*lines, f"All of it: {log}"]))
    return StackFile.read(stack_file)


def stop(*, directory: Path = LOCAL_DIRECTORY) -> bool:
    """Stop the stack of a directory; False if there is none. Raises BackgroundFailed."""
    pid = lock_holder(directory)
    if pid is None:
        return False
    with step("Stopping the local stack"):
        os.kill(pid, signal.SIGTERM)
        if not wait_until(lambda: lock_holder(directory) != pid, _STOP_DEADLINE_S):
            raise BackgroundFailed(f"Process {pid} did not end within {_STOP_DEADLINE_S:g} s")
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""
