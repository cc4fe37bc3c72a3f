"""A guest's root disk: a qcow2 overlay on its image, so that an image is there once a node."""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.drivers.qemu.guest_folder import ImageFormat
from fleetcast.agent.durable_files import sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder

_RUN_WITHIN_S: Final = 60


class _DiskInfo(msgspec.Struct):
    """What qemu-img tells of a disk."""

    image_format: ImageFormat = msgspec.field(name="backing-filename-format")


async def make_root_disk(
    image_tool: Path, folder: GuestFolder, *, image_format: ImageFormat, size_bytes: int
) -> None:
    """Make the disk on the image in the folder; it is there whole or not at all.

    image_tool: qemu-img. size_bytes: what the guest sees. Raises BootFailed.
    """
    new = folder.disk.with_suffix(".new")
    await _run(
        folder,
        *(str(image_tool), "create", "-q", "-f", "qcow2"),
        *("-b", str(folder.image), "-F", image_format),
        *(str(new), str(size_bytes)),
    )
    await asyncio.to_thread(_put_in_place, new, folder.disk)


async def format_of_image(image_tool: Path, folder: GuestFolder) -> ImageFormat:
    """Return what the disk says of the image that it was made on. Raises BootFailed."""
    # Shared: a guest may be running on it.
    asked = (
        str(image_tool),
        "info",
        "--force-share",
        "--output=json",
        "-f",
        "qcow2",
        str(folder.disk),
    )
    try:
        return msgspec.json.decode(await _run(folder, *asked), type=_DiskInfo).image_format
    except msgspec.MsgspecError as problem:
        raise BootFailed(f"its disk can't be used: {problem}") from problem


def copy_uefi_variables(template: Path, folder: GuestFolder) -> None:
    """Give the guest what its firmware remembers from one start to the next. Raises BootFailed."""
    if folder.uefi_variables.exists():
        return
    new = folder.uefi_variables.with_suffix(".new")
    try:
        shutil.copyfile(template, new)
    except OSError as problem:
        why = f"the UEFI firmware's variables can't be copied: {problem.strerror}"
        raise BootFailed(why) from problem
    _put_in_place(new, folder.uefi_variables)


def _put_in_place(new: Path, path: Path) -> None:
    try:
        file = os.open(new, os.O_RDWR)
        try:
            os.fchmod(file, 0o600)
            os.fsync(file)
        finally:
            os.close(file)
        new.replace(path)
        sync_folder(path.parent)
    except OSError as problem:
        raise BootFailed(f"its disk can't be made: {problem.strerror}") from problem


async def _run(folder: GuestFolder, *command: str) -> bytes:
    """Return what qemu-img says. Raises BootFailed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as problem:
        raise BootFailed(f"{command[0]} can't be started: {problem.strerror}") from problem
    try:
        said, complaint = await asyncio.wait_for(process.communicate(), _RUN_WITHIN_S)
    except TimeoutError as problem:
        raise BootFailed(f"{command[0]} has not ended in {_RUN_WITHIN_S} s") from problem
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        why = complaint.decode(errors="replace").strip()
        # Where things are on the host is not the owner's to know.
        raise BootFailed(f"its disk can't be used: {why.replace(f'{folder.path}/', '')}")
    return said
