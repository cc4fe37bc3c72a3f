"""Says what a long step is doing and how long it has taken so far.

A terminal gets one line that counts the seconds; anything else (a CI log, a pipe) gets a line
at the start, one every 15 s and one at the end. Standard library only: bootstrap.py uses it
before anything is installed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

TERMINAL_REFRESH_S = 0.2
LOG_REFRESH_S = 15.0

Note = Callable[[str], None]
"""Tells a running step its present detail, e.g. ``deploying: 12 of 31 resources``."""


@contextmanager
def step(title: str, *, stream: TextIO | None = None) -> Iterator[Note]:
    """Show one long step while the body runs; the yielded function sets its present detail.

    title: what is happening, without a full stop. stream: where to (default: stderr).
    """
    line = _StepLine(title, stream or sys.stderr)
    line.begin()
    try:
        yield line.note
    except BaseException:
        line.end("failed after")
        raise
    line.end("done in")


class _StepLine:
    """One step's line; a thread of its own keeps it counting while the body is busy."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._detail = ""
        self._stream = stream
        self._in_place = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._started_s = time.monotonic()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def begin(self) -> None:
        self._write(f"{self._title} ...")
        self._ticker.start()

    def note(self, detail: str) -> None:
        self._detail = detail

    def end(self, outcome: str) -> None:
        self._ended.set()
        self._ticker.join()
        self._write(f"{self._title}: {outcome} {self._elapsed_s():.1f} s")
        if self._in_place:
            self._stream.write("\n")
            self._stream.flush()

    def _tick(self) -> None:
        while not self._ended.wait(TERMINAL_REFRESH_S if self._in_place else LOG_REFRESH_S):
            detail = f" ({self._detail})" if self._detail else ""
            self._write(f"{self._title}{detail} ... {self._elapsed_s():.0f} s")

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _write(self, text: str) -> None:
        if self._in_place:
            # Longer than the terminal is wide, the line would wrap and leave its head behind.
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
            self._stream.write(f"\r\x1b[K{text[: width - 1]}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()
