"""The simulated driver keeps the contract of drivers, and its consoles nothing in confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.drivers import CONSOLE_BYTES, BootFailed
from fleetcast.agent.drivers.simulated import SimulatedDriver
from tests.agent_parts import NOW_MS, a_guest, instance_id

if TYPE_CHECKING:
    from pathlib import Path

I1 = instance_id(1)


@pytest.fixture
def driver(tmp_path: Path) -> SimulatedDriver:
    return SimulatedDriver(tmp_path / "guests", now_s=lambda: NOW_MS / 1000)


async def _console(driver: SimulatedDriver) -> list[str]:
    console = await driver.console_output(I1)
    assert console is not None
    return console.output.decode().splitlines()


async def test_a_guest_runs_from_its_boot_to_its_stop(driver: SimulatedDriver) -> None:
    await driver.boot(a_guest(1))
    assert await driver.alive() == {I1}
    await driver.stop(I1)
    assert await driver.alive() == frozenset()
    await driver.boot(a_guest(1))
    assert await driver.alive() == {I1}
    await driver.destroy(I1)
    assert await driver.alive() == frozenset()


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
    assert await driver.alive() == frozenset()


async def test_a_stopped_guest_is_destroyed_whole(driver: SimulatedDriver, tmp_path: Path) -> None:
    await driver.boot(a_guest(1))
    await driver.stop(I1)
    await driver.destroy(I1)
    assert list((tmp_path / "guests").iterdir()) == []


async def test_its_console_says_what_happened_and_when(driver: SimulatedDriver) -> None:
    await driver.boot(a_guest(1))
    await driver.reboot(I1)
    await driver.stop(I1)
    assert await _console(driver) == [
        f"2023-11-14T22:13:20Z {I1} booted: t3.medium, 2 vCPU, 4096 MiB",
        f"2023-11-14T22:13:20Z {I1} rebooted",
        f"2023-11-14T22:13:20Z {I1} powered off",
    ]


async def test_only_the_end_of_a_long_console_is_shown(
    driver: SimulatedDriver, tmp_path: Path
) -> None:
    await driver.boot(a_guest(1))
    path = tmp_path / "guests" / I1
    path.write_bytes(b"x" * CONSOLE_BYTES + b"the end")
    console = await driver.console_output(I1)
    assert console is not None
    assert len(console.output) == CONSOLE_BYTES
    assert console.output.endswith(b"the end")
    assert console.written_at_ms == path.stat().st_mtime_ns // 1_000_000


async def test_user_data_and_tags_stay_off_the_console(driver: SimulatedDriver) -> None:
    await driver.boot(a_guest(1))
    shown = "".join(await _console(driver))
    assert "c2VjcmV0" not in shown
    assert "private" not in shown


async def test_a_guest_that_cannot_be_marked_fails_to_boot(
    driver: SimulatedDriver, tmp_path: Path
) -> None:
    (tmp_path / "guests").rmdir()
    with pytest.raises(BootFailed, match="No such file"):
        await driver.boot(a_guest(1))
