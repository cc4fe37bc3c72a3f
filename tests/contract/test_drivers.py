"""What every driver does alike: the simulated one, and those that run real guests.

A driver is under test through `DriverUnderTest`, which knows how to do from outside what an owner
does within a guest.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import pytest

from fleetcast.agent.drivers import CONSOLE_BYTES
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.local.qemu_guests import end_guests
from tests.agent_parts import NOW_MS, a_guest, instance_id
from tests.qemu_node import console_shows, qemu_driver, small_guest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fleetcast.agent.drivers import Driver, Guest, GuestEnd

I1, I2 = instance_id(1), instance_id(2)
_WITHIN_S = 60  # a real guest boots under emulation


class DriverUnderTest(Protocol):
    """One kind of driver, and its guests seen from within."""

    @property
    def driver(self) -> Driver:
        """Return the driver at hand."""

    async def restart(self) -> None:
        """Make a new driver on what the last one has left, as an agent does that was killed."""

    def guest(self, number: int) -> Guest:
        """Return a guest that it can boot."""

    async def is_up(self, instance_id: str) -> None:
        """Wait until the guest does what it is told."""

    async def power_off(self, instance_id: str) -> None:
        """Shut the guest down from within."""

    async def crash(self, instance_id: str) -> None:
        """Make the guest crash."""


class _Simulated:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.driver = self._new()

    async def restart(self) -> None:
        self.driver = self._new()

    def _new(self) -> SimulatedDriver:
        return SimulatedDriver(self._folder, now_s=lambda: NOW_MS / 1000)

    def guest(self, number: int) -> Guest:
        return a_guest(number)

    async def is_up(self, instance_id: str) -> None:
        """It is, from its boot on."""

    async def power_off(self, instance_id: str) -> None:
        self.driver.end(instance_id, "powered off")

    async def crash(self, instance_id: str) -> None:
        self.driver.end(instance_id, "crashed")


class _Qemu:
    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._ups: Counter[str] = Counter()
        self.driver = qemu_driver(state_dir)

    async def restart(self) -> None:
        await self.driver.leave()
        self.driver = qemu_driver(self._state_dir)

    def guest(self, number: int) -> Guest:
        return small_guest(number, instance_id=instance_id(number))

    async def is_up(self, instance_id: str) -> None:
        self._ups[instance_id] += 1
        await console_shows(self.driver, instance_id, "guest: boot", self._ups[instance_id])

    async def power_off(self, instance_id: str) -> None:
        monitor = self.driver._running[instance_id]._monitor  # noqa: SLF001 - not by the driver
        assert monitor
        await monitor.press_power_button()

    async def crash(self, instance_id: str) -> None:
        pid_file = self._state_dir / "guests" / instance_id / "pid"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


@pytest.fixture(params=["simulated", pytest.param("qemu", marks=pytest.mark.host_packages)])
async def under_test(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[DriverUnderTest]:
    if request.param == "simulated":
        simulated = _Simulated(tmp_path / "guests")
        yield simulated
        return
    real = _Qemu(tmp_path)
    yield real
    await real.driver.leave()
    end_guests(tmp_path)


async def _alive(under_test: DriverUnderTest) -> set[str]:
    return set(await under_test.driver.alive())


async def _next_end(under_test: DriverUnderTest) -> tuple[str, str]:
    end = await asyncio.wait_for(under_test.driver.next_end(), _WITHIN_S)
    assert end.why
    return end.instance_id, end.how


def _is_told_of_no_more(following: asyncio.Task[GuestEnd]) -> bool:
    following.cancel()
    return not following.done()


async def test_guests_live_from_boot_to_destroy_and_every_call_may_be_repeated(
    under_test: DriverUnderTest,
) -> None:
    driver = under_test.driver
    for _ in range(2):
        await driver.boot(under_test.guest(1))
    assert await _alive(under_test) == {I1}
    await under_test.is_up(I1)
    await driver.reboot(I1)
    assert await _alive(under_test) == {I1}
    for _ in range(2):
        await driver.stop(I1)
        assert await _alive(under_test) == set()
        console = await driver.console_output(I1)
        assert console
        assert 0 < len(console.output) <= CONSOLE_BYTES
    await driver.reboot(I1)
    assert await _alive(under_test) == set()
    for _ in range(2):
        await driver.destroy(I1)
        assert await driver.console_output(I1) is None
    for repeated in (driver.stop, driver.reboot, driver.destroy):
        await repeated(I1)
    assert await _alive(under_test) == set()


async def test_guests_outlive_the_driver_and_are_what_they_were(
    under_test: DriverUnderTest,
) -> None:
    guest = under_test.guest(1)
    await under_test.driver.boot(guest)
    await under_test.is_up(I1)
    await under_test.restart()
    assert await _alive(under_test) == {I1}
    found = (await under_test.driver.alive())[I1]
    for name in ("launch_id", "attempt", "account_id", "instance_type", "vcpu", "memory_mib"):
        assert getattr(found, name) == getattr(guest, name)
    await under_test.driver.boot(guest)
    assert await under_test.driver.console_output(I1)
    await under_test.driver.stop(I1)
    await under_test.restart()
    assert await _alive(under_test) == set()
    assert await under_test.driver.console_output(I1)
    await under_test.driver.boot(guest)
    assert await _alive(under_test) == {I1}


async def test_an_end_is_told_once_and_nothing_that_was_ordered_is_told(
    under_test: DriverUnderTest,
) -> None:
    driver = under_test.driver
    for number in (1, 2):
        await driver.boot(under_test.guest(number))
    for number in (1, 2):  # side by side until then
        await under_test.is_up(instance_id(number))
    following = asyncio.create_task(driver.next_end())
    await driver.reboot(I2)
    await driver.stop(I2)
    await under_test.power_off(I1)
    end = await asyncio.wait_for(following, _WITHIN_S)
    assert (end.instance_id, end.how) == (I1, "powered off")
    following = asyncio.create_task(driver.next_end())
    await driver.stop(I1)
    assert await _alive(under_test) == set()
    await driver.destroy(I1)
    assert _is_told_of_no_more(following)


async def test_a_guest_that_has_crashed_boots_again(under_test: DriverUnderTest) -> None:
    driver = under_test.driver
    await driver.boot(under_test.guest(1))
    await under_test.is_up(I1)
    await under_test.crash(I1)
    assert await _next_end(under_test) == (I1, "crashed")
    await driver.boot(under_test.guest(1))
    assert await _alive(under_test) == {I1}
    await under_test.is_up(I1)
    following = asyncio.create_task(driver.next_end())
    await driver.stop(I1)
    assert _is_told_of_no_more(following)


async def test_how_a_guest_has_ended_is_known_to_the_next_driver(
    under_test: DriverUnderTest,
) -> None:
    await under_test.driver.boot(under_test.guest(1))
    await under_test.is_up(I1)
    await under_test.power_off(I1)
    assert await _next_end(under_test) == (I1, "powered off")
    await under_test.restart()
    assert await _alive(under_test) == {I1}
    assert await _next_end(under_test) == (I1, "powered off")
    await under_test.driver.boot(under_test.guest(1))
    await under_test.restart()
    following = asyncio.create_task(under_test.driver.next_end())
    assert await _alive(under_test) == {I1}
    assert _is_told_of_no_more(following)
