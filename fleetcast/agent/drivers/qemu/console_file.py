"""The end of what a guest has written to its console, in a file that stays small."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from fleetcast.agent.drivers import CONSOLE_BYTES, ConsoleOutput

if TYPE_CHECKING:
    from pathlib import Path

_MAX_FILE_BYTES: Final = 4 * CONSOLE_BYTES


def append_console(path: Path, output: bytes) -> None:
    """Keep what the guest has written since the last time. Raises OSError."""
    if not output:
        return
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
        file.write(output)
        size_bytes = file.tell()
    if size_bytes > _MAX_FILE_BYTES:
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_bytes(_end_of(path))
        new.replace(path)


def read_console(path: Path) -> ConsoleOutput | None:
    """Return the last CONSOLE_BYTES; None if it has written nothing."""
    try:
        output = _end_of(path)
        written_at_s = path.stat().st_mtime
    except FileNotFoundError:
        return None
    return ConsoleOutput(output, round(written_at_s * 1000)) if output else None


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - CONSOLE_BYTES))
        return file.read(CONSOLE_BYTES)
