"""A guest that means harm, at the monitor of its own QEMU."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from fleetcast.agent.drivers.qemu.monitor import Monitor, MonitorLost
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# A boot sector that finds pvpanic-pci (1b36:0011) by the configuration ports, goes to protected
# mode and then writes 2 to the device for ever: "the kernel that takes a crash dump is loaded", and
# each time an event.
_CAUSES_EVENTS: Final = bytes.fromhex(
    "fa31c08ed866bb000000806689d8baf80c66efbafc0c66ed663d361b110074096681c300080000ebe267"
    "668d4310baf80c66efbafc0c66ed6683e0f06689c3660f0116807c0f20c00c010f22c066ea557c000008"
    "0066b810008ed8b0028803ebfc8db426000000000000000000000000ffff0000009acf00ffff00000092"
    "cf001700687c0000"
)


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    """The monitor's socket of a QEMU that runs that boot sector."""
    disk, socket = tmp_path / "disk", tmp_path / "qmp.sock"
    sector = _CAUSES_EVENTS.ljust(510, b"\0") + b"\x55\xaa"
    disk.write_bytes(sector.ljust(2**20, b"\0"))
    binary = shutil.which("qemu-system-x86_64")
    assert binary is not None
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", binary, "-nodefaults", "-no-user-config", "-display", "none"),
        *("-machine", "q35", "-accel", "tcg", "-m", "64M", "-device", "pvpanic-pci"),
        *("-chardev", f"socket,id=qmp,path={socket},server=on,wait=off"),
        *("-mon", "chardev=qmp,mode=control"),
        *("-drive", f"file={disk},format=raw,if=virtio"),
    )
    yield socket
    process.kill()
    await process.wait()


async def test_who_is_told_of_too_many_events_breaks_off_and_may_come_back(socket: Path) -> None:
    async def monitor() -> Monitor | None:
        try:
            return await Monitor.connect(socket, changed=lambda: None)
        except MonitorLost:
            return None  # it has only just been begun

    for _ in range(2):
        connected = await eventually(monitor)
        assert connected is not None

        async def has_left(at: Monitor = connected) -> bool:
            return not at.is_connected

        await eventually(has_left)
        await connected.close()
