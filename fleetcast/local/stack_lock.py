"""One stack a directory: a lock file that its process holds, with that process's id in it."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME: Final = "lock"


class StackAlreadyRunning(FleetcastError):
    """Another process runs a stack in the same directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"A local stack is running in {directory}; stop it first: make local-down")


@contextmanager
def held_lock(directory: Path, *, pid: int) -> Iterator[None]:
    """Hold a directory's lock. Raises StackAlreadyRunning if another process has it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _NAME).open("a+") as lock:
        try:
            # The kernel lets go of it when this process ends, however that comes about.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            raise StackAlreadyRunning(directory) from taken
        lock.truncate(0)
        lock.write(str(pid))
        lock.flush()
        yield


def lock_holder(directory: Path) -> int | None:
    """Return the id of the process that holds a directory's lock, or None if none does."""
    try:
        lock = (directory / _NAME).open()
    except FileNotFoundError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # Empty for the instant between locking it and writing to it.
            return int(lock.read() or 0) or None
        return None
