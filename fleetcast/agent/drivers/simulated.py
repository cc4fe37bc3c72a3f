"""A driver whose guests are lines in a file: real in every respect but that nothing runs in them.

A guest outlives the agent, as a real one does: what happens to guests is appended to `guests.log`,
and read again at the next start. The lines of a guest are its console, but for the one that says
what it is.

Nothing in such a guest could end it, so that is said from outside: whoever writes a line
`i-… powered-off` or `i-… crashed` to the pipe `ends` beside the log makes it happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from fleetcast.agent.drivers import (
    CONSOLE_BYTES,
    BootFailed,
    ConsoleOutput,
    Guest,
    GuestEnd,
    GuestUse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fleetcast.instance_types import InstanceType
    from fleetcast.messages import LaunchRequest

_log = logging.getLogger(__name__)

How: TypeAlias = Literal["powered off", "crashed"]

_FILE: Final = "guests.log"
_PIPE: Final = "ends"
_IS: Final = b"is:"
_BOOTED: Final = b"booted:"
_REBOOTED: Final = b"rebooted"
_STOPPED: Final = b"stopped"
_DESTROYED: Final = b"destroyed"
# As the pipe and the log say it, and as the agent is told.
_ENDS: Final[Mapping[bytes, How]] = {b"powered-off": "powered off", b"crashed": "crashed"}
# Of one guest. More than CONSOLE_BYTES in any case.
_KEPT_LINES: Final = 2_000
# The file is written anew when the lines that nobody is shown any more take up more than that.
_MAX_WASTE_BYTES: Final = 4 * 2**20
_PIPE_BYTES: Final = 65_536


@dataclass(slots=True)
class _SimulatedGuest:
    """A guest that hasn't been destroyed.

    how: the way it has ended by itself, and nothing has been done about it since. lines: the last
    that it has written. what: the line that says what it is; without it, it can't run.
    """

    runs: bool = False
    how: How | None = None
    lines: list[bytes] = field(default_factory=list)
    what: bytes = b""

    def recorded(self) -> Guest:
        return _decode(self.what.split(maxsplit=3)[3])


class _Read(NamedTuple):
    """A file's guests; how many bytes its whole lines take, and those that are for nobody."""

    guests: dict[bytes, _SimulatedGuest]
    whole_bytes: int
    wasted_bytes: int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Guest).decode


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
        self._untold = {name: guest.how for name, guest in self._guests.items() if guest.how}
        self._has_ended = asyncio.Event()
        self._pipe = _open_pipe(folder / _PIPE)

    @property
    def accelerator(self) -> None:
        """Nothing runs."""

    def check(self, request: LaunchRequest, instance_type: InstanceType) -> None:
        """Take every image: none is read."""

    def addresses(self, instance_id: str) -> None:
        """Have none: these guests are in no network."""

    def overhead_mib(self, memory_mib: int) -> int:  # noqa: ARG002 - the contract's
        """Take nothing of the host's memory."""
        return 0

    def lacks(self) -> None:
        """Lack nothing: no image is read."""

    async def in_use(self) -> dict[str, GuestUse]:
        """Take nothing of the host."""
        return {}

    async def boot(self, guest: Guest) -> None:
        """Let the guest run."""
        if self._runs(guest.instance_id):
            return
        # Not what its owner has given in confidence: whoever may read the console reads this.
        size = f"{guest.instance_type}, {guest.vcpu} vCPU, {guest.memory_mib} MiB"
        is_now = _encode(msgspec.structs.replace(guest, user_data_base64=None, tags={}))
        try:
            self._happen(
                self._line(guest.instance_id, _IS, is_now),
                self._line(guest.instance_id, _BOOTED, size.encode()),
            )
        except OSError as problem:
            raise BootFailed(f"can't mark the guest as running: {problem.strerror}") from problem

    async def stop(self, instance_id: str) -> None:
        """Let the guest run no more."""
        guest = self._guests.get(instance_id.encode())
        if guest and (guest.runs or guest.how):
            self._happen(self._line(instance_id, _STOPPED))

    async def reboot(self, instance_id: str) -> None:
        """Write what a reboot writes."""
        if self._runs(instance_id):
            self._happen(self._line(instance_id, _REBOOTED))

    async def destroy(self, instance_id: str) -> None:
        """Forget the guest."""
        if instance_id.encode() in self._guests:
            self._happen(self._line(instance_id, _DESTROYED))

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the last lines of the guest."""
        guest = self._guests.get(instance_id.encode())
        if guest is None:
            return None
        written_at = datetime.fromisoformat(guest.lines[-1].split(maxsplit=1)[0].decode())
        return ConsoleOutput(
            b"".join(guest.lines)[-CONSOLE_BYTES:], round(written_at.timestamp() * 1000)
        )

    def end(self, instance_id: str, how: How) -> None:
        """Let a running guest end by itself. Raises OSError, and then it goes on."""
        if self._runs(instance_id):
            said = {told: said for said, told in _ENDS.items()}[how]
            self._happen(self._line(instance_id, said))
            self._untold[instance_id.encode()] = how
            self._has_ended.set()

    async def next_end(self) -> GuestEnd:
        """Wait for what the pipe says next."""
        loop = asyncio.get_running_loop()
        if self._pipe is not None:
            loop.add_reader(self._pipe, self._hear, self._pipe)
        try:
            while not self._untold:
                self._has_ended.clear()
                await self._has_ended.wait()
        finally:
            if self._pipe is not None:
                loop.remove_reader(self._pipe)
        name = next(iter(self._untold))
        how = self._untold.pop(name)
        return GuestEnd(name.decode(), how, f"the simulated guest {how}")

    def _hear(self, pipe: int) -> None:
        for line in os.read(pipe, _PIPE_BYTES).splitlines():
            name, _, said = line.partition(b" ")
            if said not in _ENDS or name not in self._guests:
                _log.warning("no end of a guest", extra={"said": repr(line)})
                continue
            try:
                self.end(name.decode(), _ENDS[said])
            except OSError as problem:
                _log.warning("guest not ended", extra={"why": str(problem)})

    async def alive(self) -> Mapping[str, Guest]:
        """Return the guests that run, or whose ends nothing has been done about."""
        return {
            name.decode(): guest.recorded()
            for name, guest in self._guests.items()
            if guest.runs or guest.how
        }

    def _runs(self, instance_id: str) -> bool:
        guest = self._guests.get(instance_id.encode())
        return guest is not None and guest.runs

    def _line(self, instance_id: str, what: bytes, details: bytes = b"") -> bytes:
        at = _time_to_the_millisecond(round(self._now_s() * 1000))
        return b" ".join((at, instance_id.encode(), what, details)).rstrip() + b"\n"

    def _happen(self, *lines: bytes) -> None:
        """Write lines, all or none, and let what they say happen."""
        text = b"".join(lines)
        written_n = os.write(self._file, text)
        if written_n < len(text):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written_n)
            raise OSError(errno.ENOSPC, "no room for a whole line")
        for line in lines:
            self._wasted_bytes += _take_up(line, self._guests)
            self._untold.pop(line.split(maxsplit=2)[1], None)
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
        guests = self._guests.values()
        anew.write_bytes(b"".join(line for guest in guests for line in (guest.what, *guest.lines)))
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
        return len(line) + (len(gone.what) + sum(map(len, gone.lines)) if gone else 0)
    guest = guests.get(name) or guests.setdefault(name, _SimulatedGuest())
    if what == _IS:
        wasted, guest.what = len(guest.what), line
        return wasted
    guest.runs = what in {_BOOTED, _REBOOTED} and bool(guest.what)
    guest.how = _ENDS.get(what)
    guest.lines.append(line)
    return len(guest.lines.pop(0)) if len(guest.lines) > _KEPT_LINES else 0


@lru_cache(maxsize=1)  # a burst of guests boots in a few milliseconds
def _time_to_the_millisecond(epoch_ms: int) -> bytes:
    at = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").encode()


def _open_pipe(path: Path) -> int | None:
    """Make the pipe that says how guests end; None if the disk has no room for it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # For writing too: else it would end whenever nobody else has it open.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)
    except OSError as problem:
        _log.warning("guests can't end by themselves", extra={"why": str(problem)})
        return None
