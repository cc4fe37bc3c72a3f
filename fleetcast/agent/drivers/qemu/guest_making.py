"""Lets all be there that a guest's QEMU opens: made once, and from then on its owner's.

The disk comes last: with it, the guest is made. One that is there, or was, is never made anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.drivers.qemu.disks import (
    copy_uefi_variables,
    format_of_image,
    make_root_disk,
)
from fleetcast.agent.drivers.qemu.guest_folder import GuestRecord
from fleetcast.agent.drivers.qemu.whole_steps import to_its_end

if TYPE_CHECKING:
    from fleetcast.agent.drivers import Guest
    from fleetcast.agent.drivers.qemu.command_line import QemuHost
    from fleetcast.agent.drivers.qemu.guest_folder import Firmware, GuestFolder
    from fleetcast.agent.images import Images, LocalImage


async def make_ready(
    guest: Guest, folder: GuestFolder, *, images: Images, host: QemuHost
) -> GuestRecord:
    """Make the guest, or find it made, and return its record, which is on disk.

    Raises BootFailed, and OSError where files can't be written.
    """
    folder.make()
    if folder.disk.exists():
        known = folder.read_record()
        record = await _record_of_made(guest, folder, host, known=known)
        if record != known:
            await to_its_end(asyncio.to_thread(folder.write_record, record))
        return record
    if folder.is_used:  # a new one would hide that what its owner had on it is lost
        raise BootFailed("its disk is gone")
    image = await images.link(guest.image_id, folder.image)
    return await to_its_end(_make(guest, folder, host, image))


async def _record_of_made(
    guest: Guest, folder: GuestFolder, host: QemuHost, *, known: GuestRecord | None
) -> GuestRecord:
    """Return the record as it should be; what is damaged is told by the disk."""
    if known is not None:
        return msgspec.structs.replace(known, guest=guest)
    image_format = await format_of_image(host.image_tool, folder)
    firmware: Firmware = "uefi" if folder.uefi_variables.exists() else "bios"
    return GuestRecord(guest=guest, image_format=image_format, firmware=firmware)


async def _make(
    guest: Guest, folder: GuestFolder, host: QemuHost, image: LocalImage
) -> GuestRecord:
    record = GuestRecord(guest=guest, image_format=image.format, firmware=image.firmware)
    await asyncio.to_thread(folder.write_record, record)
    if record.firmware == "uefi":
        await asyncio.to_thread(copy_uefi_variables, host.uefi_variables, folder)
    asked_bytes = (guest.root_disk_gib or 0) * 2**30
    size_bytes = max(asked_bytes, image.virtual_size_bytes)
    await make_root_disk(host.image_tool, folder, image_format=image.format, size_bytes=size_bytes)
    return record
