"""What a guest's QEMU has printed: why it has ended, for people to read."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder

_MAX_FILE_BYTES: Final = 2**20
_READ_BYTES: Final = 4_096
_MAX_WORDS: Final = 300
# Who says it, and of which option: its JSON is longer than what there is to say.
_ABOUT: Final = re.compile(r"^\S*qemu-system-\w+: (-\w+ \{.*\}: )?")


def last_words(folder: GuestFolder) -> str:
    """Return its last line, without where things are on this host."""
    try:
        with folder.output.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - _READ_BYTES))
            lines = file.read(_READ_BYTES).decode(errors="replace").split("\n")
    except OSError:
        lines = []
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    words = _ABOUT.sub("", said).replace(f"{folder.path}/", "")
    printable = "".join(letter if letter.isprintable() else " " for letter in words)
    return printable[:_MAX_WORDS] or "it says nothing"


def cut_output(folder: GuestFolder) -> None:
    """Let a QEMU that never ceases to complain fill no disk."""
    try:
        if folder.output.stat().st_size > _MAX_FILE_BYTES:
            os.truncate(folder.output, 0)
    except FileNotFoundError:
        return
