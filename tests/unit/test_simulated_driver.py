"""The simulated driver keeps the contract of drivers, and its consoles nothing in confidence."""

from __future__ import annotations

import contextlib
import resource
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.drivers import CONSOLE_BYTES, BootFailed
from fleetcast.agent.drivers.simulated import SimulatedDriver, running_guests
from tests.agent_parts import NOW_MS, a_guest, instance_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

I1, I2 = instance_id(1), instance_id(2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "guests"


@pytest.fixture
def driver(folder: Path) -> SimulatedDriver:
    return _started_again(folder)


@contextlib.contextmanager
def _disk_with_room_for(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _started_again(folder: Path) -> SimulatedDriver:
    return SimulatedDriver(folder, now_s=lambda: NOW_MS / 1000)


async def _console(driver: SimulatedDriver) -> list[str]:
    console = await driver.console_output(I1)
    assert console is not None
    return console.output.decode().splitlines()


async def test_a_guest_runs_from_its_boot_to_its_stop(driver: SimulatedDriver) -> None:
    await driver.boot(a_guest(1))
    assert (await driver.alive()).keys() == {I1}
    await driver.stop(I1)
    assert await driver.alive() == {}
    await driver.boot(a_guest(1))
    assert (await driver.alive()).keys() == {I1}
    await driver.destroy(I1)
    assert await driver.alive() == {}


async def test_every_call_may_be_repeated(driver: SimulatedDriver) -> None:
    for _ in range(2):
        await driver.boot(a_guest(1))
    await driver.reboot(I1)
    for _ in range(2):
        await driver.stop(I1)
    await driver.reboot(I1)
    assert len(await _console(driver)) == 3
    for _ in range(2):
        await driver.destroy(I1)
    assert await driver.console_output(I1) is None
    await driver.stop(I1)
    await driver.reboot(I1)
    assert await driver.alive() == {}


async def test_guests_outlive_who_started_them(driver: SimulatedDriver, folder: Path) -> None:
    for number in (1, 2, 3):
        await driver.boot(a_guest(number))
    await driver.stop(I2)
    await driver.destroy(instance_id(3))
    assert running_guests(folder) == {I1}
    later = _started_again(folder)
    assert (await later.alive()).keys() == {I1}
    assert await later.console_output(I2) == await driver.console_output(I2)
    assert await later.console_output(instance_id(3)) is None


async def test_its_console_says_what_happened_and_when(driver: SimulatedDriver) -> None:
    await driver.boot(a_guest(1))
    await driver.reboot(I1)
    await driver.stop(I1)
    assert await _console(driver) == [
        f"2023-11-14T22:13:20.000+00:00 {I1} booted: t3.medium, 2 vCPU, 4096 MiB",
        f"2023-11-14T22:13:20.000+00:00 {I1} rebooted",
        f"2023-11-14T22:13:20.000+00:00 {I1} stopped",
    ]
    console = await driver.console_output(I1)
    assert console is not None
    assert console.written_at_ms == NOW_MS


async def test_only_the_end_of_a_long_console_is_shown(driver: SimulatedDriver) -> None:
    await driver.boot(a_guest(1))
    for _ in range(1_500):
        await driver.reboot(I1)
    await driver.stop(I1)
    console = await driver.console_output(I1)
    assert console is not None
    assert len(console.output) == CONSOLE_BYTES
    assert console.output.endswith(b"stopped\n")


async def test_user_data_and_tags_stay_off_the_disk(driver: SimulatedDriver, folder: Path) -> None:
    await driver.boot(a_guest(1))
    shown = (folder / "guests.log").read_bytes()
    assert I1.encode() in shown
    assert b"c2VjcmV0" not in shown
    assert b'"private"' not in shown


async def test_the_lines_of_what_is_gone_are_dropped_in_time(
    driver: SimulatedDriver, folder: Path
) -> None:
    await driver.boot(a_guest(1))
    for _ in range(15):
        await driver.boot(a_guest(2))
        for _ in range(5_000):
            await driver.reboot(I2)
        await driver.destroy(I2)
    assert (folder / "guests.log").stat().st_size < 5_000_000
    assert running_guests(folder) == {I1}
    await driver.boot(a_guest(2))
    assert (await _started_again(folder).alive()).keys() == {I1, I2}


async def test_a_file_that_cannot_be_written_anew_goes_on_as_it_is(
    driver: SimulatedDriver, folder: Path
) -> None:
    (folder / "guests.anew").mkdir()  # nothing can be written there
    await driver.boot(a_guest(1))
    for number in range(2, 10):
        await driver.boot(a_guest(number))
        for _ in range(10_000):
            await driver.reboot(instance_id(number))
        await driver.destroy(instance_id(number))
    await driver.boot(a_guest(2))
    assert (await driver.alive()).keys() == running_guests(folder) == {I1, I2}


async def test_it_starts_on_a_full_disk(driver: SimulatedDriver, folder: Path) -> None:
    await driver.boot(a_guest(1))
    with _disk_with_room_for(0):
        assert (await _started_again(folder).alive()).keys() == {I1}


async def test_a_line_that_a_crash_has_cut_off_spoils_none_after_it(
    driver: SimulatedDriver, folder: Path
) -> None:
    await driver.boot(a_guest(1))
    with (folder / "guests.log").open("ab") as file:
        file.write(b"2023-11-14T22:13:20.000+00:00 i-0000")
    await _started_again(folder).boot(a_guest(2))
    assert running_guests(folder) == {I1, I2}


async def test_what_is_for_nobody_is_dropped_in_time_though_it_starts_again_and_again(
    driver: SimulatedDriver, folder: Path
) -> None:
    for _ in range(15):
        await driver.boot(a_guest(1))
        for _ in range(10_000):
            await driver.reboot(I1)
        await driver.destroy(I1)
        driver = _started_again(folder)
    assert (folder / "guests.log").stat().st_size < 5_000_000


async def test_a_guest_that_is_rebooted_without_end_takes_no_more_room(
    driver: SimulatedDriver, folder: Path
) -> None:
    await driver.boot(a_guest(1))
    for _ in range(100_000):
        await driver.reboot(I1)
    assert (folder / "guests.log").stat().st_size < 5_000_000
    assert running_guests(folder) == {I1}


async def test_a_guest_that_cannot_be_written_down_fails_to_boot_and_spoils_nothing(
    driver: SimulatedDriver, folder: Path
) -> None:
    await driver.boot(a_guest(1))
    size = (folder / "guests.log").stat().st_size
    for room, why in ((30, "no room for a whole line"), (0, "File too large")):
        with _disk_with_room_for(size + room), pytest.raises(BootFailed, match=why):
            await driver.boot(a_guest(2))
        assert (await driver.alive()).keys() == running_guests(folder) == {I1}
    await driver.boot(a_guest(2))
    assert running_guests(folder) == {I1, I2}
