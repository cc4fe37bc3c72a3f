"""A driver whose guests are lines in a file: real in every respect but that nothing runs in them.

A guest outlives the agent, as a real one does: what happens to guests is appended to `guests.log`,
and read again at the next start. The lines of a guest are its console.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetcast.agent.drivers import CONSOLE_BYTES, BootFailed, ConsoleOutput, GuestEnd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fleetcast.agent.drivers import Guest
    from fleetcast.instance_types import InstanceType
    from fleetcast.messages import LaunchRequest

_log = logging.getLogger(__name__)

_FILE: Final = "guests.log"
_BOOTED: Final = b"booted:"
_REBOOTED: Final = b"rebooted"
_STOPPED: Final = b"stopped"
_DESTROYED: Final = b"destroyed"
# Of one guest. More than CONSOLE_BYTES in any case.
_KEPT_LINES: Final = 2_000
# The file is written anew when the lines that nobody is shown any more take up more than that.
_MAX_WASTE_BYTES: Final = 4 * 2**20


@dataclass
class _SimulatedGuest:
    """A guest that hasn't been destroyed. lines: the last that it has written."""

    runs: bool = False
    lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))


class _Read(NamedTuple):
    """A file's guests; how many bytes its whole lines take, and those that are for nobody."""

    guests: dict[bytes, _SimulatedGuest]
    whole_bytes: int
    wasted_bytes: int


def running_guests(folder: Path) -> frozenset[str]:
    """Return the ids of the guests that run, for who looks on from outside the agent."""
    guests = _read(folder / _FILE).guests
    return frozenset(name.decode() for name, guest in guests.items() if guest.runs)


class SimulatedDriver:
    """Keeps the guests in `folder`. now_s: epoch seconds, for what they write."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / _FILE
        self._now_s = now_s
        self._guests, whole_bytes, self._wasted_bytes = _read(self._path)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.ftruncate(self._file, whole_bytes)  # or the next line would be a part of the last one

    def check(self, request: LaunchRequest, instance_type: InstanceType) -> None:
        """Take every image: none is read."""

    def addresses(self, instance_id: str) -> None:
        """Have none: these guests are in no network."""

    def overhead_mib(self, memory_mib: int) -> int:  # noqa: ARG002 - the contract's
        """Take nothing of the host's memory."""
        return 0

    async def boot(self, guest: Guest) -> None:
        """Let the guest run."""
        if self._runs(guest.instance_id):
            return
        # Not what its owner has given in confidence: whoever may read the console reads this.
        size = f"{guest.instance_type}, {guest.vcpu} vCPU, {guest.memory_mib} MiB"
        try:
            self._happens(guest.instance_id, _BOOTED, size)
        except OSError as problem:
            raise BootFailed(f"can't mark the guest as running: {problem.strerror}") from problem

    async def stop(self, instance_id: str) -> None:
        """Let the guest run no more."""
        if self._runs(instance_id):
            self._happens(instance_id, _STOPPED)

    async def reboot(self, instance_id: str) -> None:
        """Write what a reboot writes."""
        if self._runs(instance_id):
            self._happens(instance_id, _REBOOTED)

    async def destroy(self, instance_id: str) -> None:
        """Forget the guest."""
        if instance_id.encode() in self._guests:
            self._happens(instance_id, _DESTROYED)

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the last lines of the guest."""
        guest = self._guests.get(instance_id.encode())
        if guest is None:
            return None
        written_at = datetime.fromisoformat(guest.lines[-1].split(maxsplit=1)[0].decode())
        return ConsoleOutput(
            b"".join(guest.lines)[-CONSOLE_BYTES:], round(written_at.timestamp() * 1000)
        )

    async def next_end(self) -> GuestEnd:
        """Wait for ever: these guests end only when they are told to."""
        never: asyncio.Future[GuestEnd] = asyncio.get_running_loop().create_future()
        return await never

    async def alive(self) -> frozenset[str]:
        """Return the ids of the guests that run."""
        return frozenset(name.decode() for name, guest in self._guests.items() if guest.runs)

    def _runs(self, instance_id: str) -> bool:
        guest = self._guests.get(instance_id.encode())
        return guest is not None and guest.runs

    def _happens(self, instance_id: str, what: bytes, details: str = "") -> None:
        at = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        line = f"{at} {instance_id} {what.decode()} {details}".rstrip().encode() + b"\n"
        written_n = os.write(self._file, line)
        if written_n < len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written_n)
            raise OSError(errno.ENOSPC, "no room for a whole line")
        self._wasted_bytes += _take_up(line, self._guests)
        if self._wasted_bytes > _MAX_WASTE_BYTES:
            self._drop_waste()

    def _drop_waste(self) -> None:
        self._wasted_bytes = 0
        before = self._file
        try:
            self._file = self._write_anew()
        except OSError as problem:  # the file as it is serves as well
            _log.warning("guests.log not written anew", extra={"why": str(problem)})
        else:
            # Not earlier: its number may be given to the next file that somebody opens.
            os.close(before)

    def _write_anew(self) -> int:
        """Write the lines of the guests that are there, and return the open file."""
        anew = self._path.with_suffix(".anew")
        anew.write_bytes(b"".join(line for guest in self._guests.values() for line in guest.lines))
        file = os.open(anew, os.O_WRONLY | os.O_APPEND)
        try:
            anew.replace(self._path)
        except OSError:
            os.close(file)
            raise
        return file


def _read(path: Path) -> _Read:
    guests: dict[bytes, _SimulatedGuest] = {}
    whole_bytes = wasted_bytes = 0
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):  # what a full disk has cut off has not happened
                wasted_bytes += _take_up(line, guests)
                whole_bytes += len(line)
    return _Read(guests, whole_bytes, wasted_bytes)


def _take_up(line: bytes, guests: dict[bytes, _SimulatedGuest]) -> int:
    """Let what a line says happen; return how many bytes of the file are for nobody any more."""
    _, name, what = line.split(maxsplit=3)[:3]
    if what == _DESTROYED:
        gone = guests.pop(name, None)
        return len(line) + (sum(map(len, gone.lines)) if gone else 0)
    guest = guests.setdefault(name, _SimulatedGuest())
    guest.runs = what != _STOPPED
    wasted = len(guest.lines[0]) if len(guest.lines) == _KEPT_LINES else 0
    guest.lines.append(line)
    return wasted
