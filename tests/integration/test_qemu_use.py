"""What real guests take of their host, and GPUs that it can't give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.drivers import BootFailed
from tests.qemu_node import console_shows, qemu_driver, small_guest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.host_packages

# No test host has a device there.
_ABSENT = "0000:7f:1f.7"


async def test_a_guest_that_is_up_has_taken_no_more_than_is_booked_for_it(tmp_path: Path) -> None:
    driver = qemu_driver(tmp_path / "state")
    guest = small_guest(1)
    booked_mib = guest.memory_mib + driver.overhead_mib(guest.memory_mib)
    await driver.boot(guest)
    try:
        await console_shows(driver, guest.instance_id, "guest: ready")
        (use,) = (await driver.in_use()).values()
        assert 32 < use.memory_mib <= booked_mib
        assert 0 <= use.disk_mib < 1_024
    finally:
        await driver.destroy(guest.instance_id)
        await driver.leave()
    assert await driver.in_use() == {}


async def test_a_guest_whose_gpu_is_not_there_fails_to_boot_and_keeps_none(tmp_path: Path) -> None:
    driver = qemu_driver(tmp_path / "state", gpu_addresses=(_ABSENT,))
    for number in (1, 2):  # the second one finds the first one's given back
        with pytest.raises(BootFailed, match=_ABSENT):
            await driver.boot(small_guest(number, gpus=1))
    with pytest.raises(BootFailed, match="2 GPUs are needed, and 1 are free"):
        await driver.boot(small_guest(3, gpus=2))
    assert list((tmp_path / "state" / "guests").iterdir()) == []
    await driver.leave()
