"""What the QEMU driver makes of files that are damaged, and of a QEMU that falls silent."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final

import pytest

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder, GuestRecord
from fleetcast.agent.drivers.qemu.settings import QemuSettings
from fleetcast.agent.guest_processes import GuestChildren
from fleetcast.local.qemu_guests import end_guests, guest_pids
from tests.eventually import eventually
from tests.qemu_node import qemu_driver, small_guest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Any

    from fleetcast.agent.drivers.qemu.driver import QemuDriver

_GUEST: Final = small_guest(1, user_data="#!/bin/sh\n")
_ID: Final = _GUEST.instance_id
# What is stopped here has not come far enough to hear of it.
_SETTINGS: Final = QemuSettings(accelerator="tcg", shutdown_timeout_s=1)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[QemuDriver]:
    driver = qemu_driver(tmp_path, _SETTINGS)
    yield driver
    end_guests(tmp_path)
    await driver.leave()


@pytest.fixture
def folder(tmp_path: Path) -> GuestFolder:
    return GuestFolder(tmp_path / "guests" / _ID)


async def test_a_guest_whose_record_is_damaged_boots_from_the_disk_that_it_has(
    driver: QemuDriver, folder: GuestFolder
) -> None:
    await driver.boot(_GUEST)
    await driver.stop(_ID)
    written, disk = folder.read_record(), folder.disk.stat().st_ino
    record = folder.path / "guest.json"
    for damaged in (b"", record.read_bytes().replace(_ID.encode(), b"i-99999999")):
        record.write_bytes(damaged)
        await driver.boot(_GUEST)
        assert folder.disk.stat().st_ino == disk
        assert folder.read_record() == written
        # And while it runs, and no agent is there.
        pid = folder.pid.read_text()
        record.write_bytes(damaged)
        await driver.leave()
        assert await driver.alive() == {}
        await driver.boot(_GUEST)
        assert folder.pid.read_text() == pid
        assert await driver.alive() == {_ID: _GUEST}
        await driver.stop(_ID)


async def test_a_guest_whose_disk_is_gone_is_not_given_an_empty_one(
    driver: QemuDriver, folder: GuestFolder
) -> None:
    await driver.boot(_GUEST)
    await driver.stop(_ID)
    folder.disk.unlink()
    with pytest.raises(BootFailed, match="its disk is gone"):
        await driver.boot(_GUEST)
    assert folder.read_record() == GuestRecord(guest=_GUEST, image_format="raw", firmware="bios")
    await driver.destroy(_ID)
    assert not folder.path.exists()


async def test_a_folder_that_cannot_be_read_keeps_no_other_guest_from_being_taken_over(
    driver: QemuDriver, tmp_path: Path
) -> None:
    await driver.boot(_GUEST)
    other = GuestFolder(tmp_path / "guests" / small_guest(2).instance_id)
    other.make()
    other.pid.symlink_to(other.pid)
    await driver.leave()
    assert await driver.alive() == {_ID: _GUEST}


async def test_a_guest_whose_pid_file_is_removed_is_found_and_ended_all_the_same(
    driver: QemuDriver, folder: GuestFolder, tmp_path: Path
) -> None:
    await driver.boot(_GUEST)
    folder.pid.unlink()
    await driver.leave()
    assert await driver.alive() == {_ID: _GUEST}
    await driver.leave()
    await driver.destroy(_ID)
    assert guest_pids(tmp_path) == []


async def test_who_asks_for_the_console_of_a_silent_qemu_gets_what_was_there_before(
    driver: QemuDriver, folder: GuestFolder
) -> None:
    await driver.boot(_GUEST)

    async def console() -> bytes:
        asked = driver.console_output(_ID)
        # QEMU itself is given five seconds for an answer.
        output = await asyncio.wait_for(asked, timeout=4)
        return output.output if output else b""

    before = await eventually(console)
    os.kill(int(folder.pid.read_text()), signal.SIGSTOP)
    assert (await console()).startswith(before)


async def test_a_guest_whose_console_is_asked_for_while_it_is_begun_is_followed_once(
    driver: QemuDriver, folder: GuestFolder
) -> None:
    class Slow(GuestChildren):
        """Answers late, as systemd may."""

        async def begin(self, instance_id: str, command: Any, **how: Any) -> int:  # noqa: ANN401 - passed on
            pid = await super().begin(instance_id, command, **how)
            await eventually(lambda: asyncio.sleep(0, folder.monitor.exists()))
            await driver.console_output(instance_id)
            return pid

    driver._processes = Slow()  # noqa: SLF001 - a unit's, without systemd
    await driver.boot(_GUEST)
    os.kill(int(folder.pid.read_text()), signal.SIGKILL)
    end = await driver.next_end()
    assert (end.instance_id, end.how) == (_ID, "crashed")
    await driver.boot(_GUEST)
    told_again = asyncio.create_task(driver.next_end())
    await asyncio.wait([told_again], timeout=0.1)
    assert told_again.cancel()
