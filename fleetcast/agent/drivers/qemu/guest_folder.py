"""Where what is a guest's lies: `guests/i-…/` in the state folder, for the agent's user only."""

from __future__ import annotations

import errno
import re
import shutil
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from fleetcast.agent.drivers import Guest
from fleetcast.agent.durable_files import write_durably
from fleetcast.messages import INSTANCE_ID_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ImageFormat: TypeAlias = Literal["qcow2", "raw"]
Firmware: TypeAlias = Literal["bios", "uefi"]

_INSTANCE_ID: Final = re.compile(INSTANCE_ID_PATTERN)


class GuestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent that knows nothing of a guest needs to take it over, and to boot it again.

    The image's: what its root disk is an overlay of.
    """

    guest: Guest
    image_format: ImageFormat
    firmware: Firmware


class GuestFolder:
    """The files of one guest. None needs to be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance_id = path.name
        self.image = path / "image"
        self.disk = path / "disk.qcow2"
        self.seed = path / "seed.iso"
        self.uefi_variables = path / "uefi-vars.fd"
        self.monitor = path / "qmp.sock"
        # QEMU writes and locks it: see qemu_process.
        self.pid = path / "pid"
        # What QEMU itself prints, and what its guest writes to its serial line.
        self.output = path / "qemu.log"
        self.console = path / "console.log"
        self._record = path / "guest.json"

    @property
    def is_used(self) -> bool:
        """Say whether a QEMU has been begun on its disk, or could be."""
        return self.disk.exists() or self.output.exists()

    def make(self) -> None:
        """Let the folder be there. Raises OSError."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        if self.path.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "the guest's folder is a link")

    def read_record(self) -> GuestRecord | None:
        """Return what `write_record` wrote; None if there is none that is this guest's."""
        try:
            record = msgspec.json.decode(self._record.read_bytes(), type=GuestRecord)
        except (OSError, msgspec.MsgspecError):
            return None
        return record if record.guest.instance_id == self.instance_id else None

    def write_record(self, record: GuestRecord) -> None:
        """Keep the record, whole or not at all, whatever happens to the agent or the host."""
        write_durably(self._record, msgspec.json.encode(record))

    def remove(self) -> None:
        """Remove the folder with all that is in it; the record goes last, so that a crash shows."""
        if self.path.is_symlink():
            self.path.unlink()  # where it leads to is nothing of ours
        while self.path.is_dir():
            for path in (*self._others(), self._record):
                _remove(path)
            try:
                self.path.rmdir()
            except OSError as problem:
                # A boot that was called off may still have been putting its image there.
                if problem.errno != errno.ENOTEMPTY:
                    raise

    def _others(self) -> list[Path]:
        return [path for path in self.path.glob("*") if path != self._record]


class GuestFolders:
    """The folders of a node's guests, in `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def of(self, instance_id: str) -> GuestFolder:
        """Return an instance's folder. Raises ValueError for what is no instance id."""
        if not _INSTANCE_ID.fullmatch(instance_id):
            raise ValueError(f"no instance id: {instance_id!r}")
        return GuestFolder(self._root / instance_id)

    def __iter__(self) -> Iterator[GuestFolder]:
        """Go through all that are there."""
        for path in sorted(self._root.glob("i-*")):
            if _INSTANCE_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                yield GuestFolder(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
