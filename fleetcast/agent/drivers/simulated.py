"""A driver whose guests are files: real in every respect but that nothing runs in them.

A guest outlives the agent, as a real one does: its file stays until it is destroyed. The file is
its console, and its name says whether it runs: `i-…`, or `i-….stopped`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fleetcast.agent.drivers import CONSOLE_BYTES, BootFailed, ConsoleOutput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fleetcast.agent.drivers import Guest

_STOPPED: Final = ".stopped"


class SimulatedDriver:
    """Keeps the guests in `folder`. now_s: epoch seconds, for the lines on their consoles."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._now_s = now_s

    async def boot(self, guest: Guest) -> None:
        """Let the guest run, and write what a boot writes."""
        running = self._folder / guest.instance_id
        # Not what its owner has given in confidence: whoever may read the console reads this.
        line = self._line(
            f"{guest.instance_id} booted: {guest.instance_type}, {guest.vcpu} vCPU, "
            f"{guest.memory_mib} MiB"
        )
        try:
            if self._stopped(guest.instance_id).exists():
                self._stopped(guest.instance_id).rename(running)
                _append(running, line)
            elif not running.exists():
                _append(running, line)
        except OSError as problem:
            raise BootFailed(f"can't mark the guest as running: {problem.strerror}") from problem

    async def stop(self, instance_id: str) -> None:
        """Let the guest run no more."""
        running = self._folder / instance_id
        if running.exists():
            _append(running, self._line(f"{instance_id} powered off"))
            running.rename(self._stopped(instance_id))

    async def reboot(self, instance_id: str) -> None:
        """Write what a reboot writes."""
        running = self._folder / instance_id
        if running.exists():
            _append(running, self._line(f"{instance_id} rebooted"))

    async def destroy(self, instance_id: str) -> None:
        """Forget the guest."""
        (self._folder / instance_id).unlink(missing_ok=True)
        self._stopped(instance_id).unlink(missing_ok=True)

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the end of the guest's file."""
        for path in (self._folder / instance_id, self._stopped(instance_id)):
            try:
                with path.open("rb") as console:
                    status = os.fstat(console.fileno())
                    console.seek(max(status.st_size - CONSOLE_BYTES, 0))
                    return ConsoleOutput(console.read(), status.st_mtime_ns // 1_000_000)
            except FileNotFoundError:
                continue
        return None

    async def alive(self) -> frozenset[str]:
        """Return the ids of the guests that run."""
        return frozenset(path.name for path in self._folder.iterdir() if path.suffix != _STOPPED)

    def _stopped(self, instance_id: str) -> Path:
        return self._folder / f"{instance_id}{_STOPPED}"

    def _line(self, what: str) -> bytes:
        at = datetime.fromtimestamp(self._now_s(), UTC)
        return f"{at:%Y-%m-%dT%H:%M:%SZ} {what}\r\n".encode()


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as console:
        console.write(line)
