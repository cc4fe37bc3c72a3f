"""What guests have taken of the host: read from /proc and from their folders."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcast.agent.drivers import GuestUse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder, GuestFolders

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES: Final = 512  # what st_blocks counts, whatever the file system's own are
_MIB: Final = 2**20


def guest_uses(folders: GuestFolders, pids: Mapping[str, int]) -> dict[str, GuestUse]:
    """Return what each guest has taken. pids: of their QEMUs; one that has ended is left out."""
    uses: dict[str, GuestUse] = {}
    for instance_id, pid in pids.items():
        try:
            resident_pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
            disk_mib = _disk_bytes(folders.of(instance_id)) // _MIB
        except (FileNotFoundError, ProcessLookupError):
            continue
        uses[instance_id] = GuestUse(resident_pages * _PAGE_BYTES // _MIB, disk_mib)
    return uses


def _disk_bytes(folder: GuestFolder) -> int:
    taken_bytes = 0
    for path in folder.path.iterdir():
        # The image is the cache's: a link to it takes nothing.
        if path != folder.image:
            with contextlib.suppress(FileNotFoundError):  # put in another's place meanwhile
                taken_bytes += path.lstat().st_blocks * _BLOCK_BYTES
    return taken_bytes
