"""One clock for everything that a test runs, its agents' processes too, that the test can move."""

from __future__ import annotations

import mmap
import struct
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_AHEAD: Final = struct.Struct("d")
# As long as nobody patches it.
_machine_time_ns: Final = time.time_ns


class WorldClock:
    """The machine's clock and what it was moved by. All who open the same file see the same time.

    skew_ms: by how much whoever reads it here is ahead of the others.
    """

    def __init__(self, path: Path, *, skew_ms: int = 0) -> None:
        if not path.exists():
            path.write_bytes(_AHEAD.pack(0.0))
        self._skew_ns = skew_ms * 1_000_000
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _AHEAD.size)

    def now_ns(self) -> int:
        """Return epoch nanoseconds."""
        (ahead_s,) = _AHEAD.unpack(self._memory[:])
        return _machine_time_ns() + int(ahead_s * 1e9) + self._skew_ns

    def now_s(self) -> float:
        """Return epoch seconds."""
        return self.now_ns() / 1e9

    def move(self, seconds: float) -> None:
        """Let that much time have passed."""
        (ahead_s,) = _AHEAD.unpack(self._memory[:])
        self._memory[:] = _AHEAD.pack(ahead_s + seconds)
