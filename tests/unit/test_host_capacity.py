"""What instances may use: of what the host has, and of what is really free of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.capacity.cgroup_limits import CgroupLimits
from fleetcast.agent.capacity.host import Host, HostState
from fleetcast.agent.capacity.host_capacity import (
    host_capacity,
    simulated_capacity,
    taken_disk_mib,
    withheld_mib,
)
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.capacity.settings import CapacitySettings
from fleetcast.agent.capacity.watch import CapacityWatch
from fleetcast.agent.drivers import GuestUse
from fleetcast.capacity import Resources

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULTS = CapacitySettings()
_HOST = HostState(
    cores=16,
    memory_mib=65_536,
    available_mib=64_000,
    disk_free_mib=500 * 1_024,
    limits=CgroupLimits(None, None),
)
_SMALL = Resources(vcpu=2, memory_mib=4_096 + 100, disk_gib=8)


def _capacity(host: HostState = _HOST, *, gpus: int = 0, **settings: float) -> Resources:
    return host_capacity(msgspec.convert(settings, CapacitySettings), host, gpus=gpus)


def test_by_default_instances_have_the_physical_cores_and_what_the_host_can_spare() -> None:
    reserve_mib = 65_536 // 20
    assert _capacity() == Resources(vcpu=16, memory_mib=65_536 - reserve_mib, disk_gib=495)


def test_a_small_host_keeps_a_gib_for_itself() -> None:
    assert _capacity(_HOST._replace(memory_mib=4_096)).memory_mib == 3_072


@pytest.mark.parametrize(
    ("settings", "vcpu"),
    [
        ({"vcpu_per_core": 2.5}, 40),
        ({"vcpu_per_core": 0.5}, 8),
        ({"reserve_vcpu": 2}, 14),
        ({"vcpu_per_core": 2, "reserve_vcpu": 2}, 30),
        ({"vcpu": 10, "vcpu_per_core": 2}, 10),
        ({"vcpu": 100}, 16),
        ({"reserve_vcpu": 20}, 0),
    ],
)
def test_vcpus_follow_ratio_reserve_and_limit(settings: dict[str, float], vcpu: int) -> None:
    asked = msgspec.convert(settings, CapacitySettings)
    assert host_capacity(asked, _HOST, gpus=0).vcpu == vcpu


def test_no_fixed_number_makes_a_host_larger_than_it_is() -> None:
    settings = CapacitySettings(vcpu=1_000, memory_mib=10**6, gpus=8, disk_gib=10**4)
    assert host_capacity(settings, _HOST, gpus=2) == _capacity(gpus=2)


def test_fixed_numbers_are_limits() -> None:
    settings = CapacitySettings(vcpu=4, memory_mib=8_192, gpus=1, disk_gib=100)
    limited = Resources(vcpu=4, memory_mib=8_192, gpus=1, disk_gib=100)
    assert host_capacity(settings, _HOST, gpus=2) == limited


def test_limits_of_the_control_group_are_limits() -> None:
    host = _HOST._replace(limits=CgroupLimits(memory_mib=10_000, cpus=3.5))
    assert _capacity(host).memory_mib == 10_000
    assert _capacity(host).vcpu == 3
    assert _capacity(host, vcpu_per_core=2).vcpu == 7


def test_simulated_instances_use_nothing_of_the_host_and_may_have_more_than_it_has() -> None:
    settings = CapacitySettings(vcpu=1_000, memory_mib=10**6)
    assert simulated_capacity(settings, _HOST) == Resources(vcpu=1_000, memory_mib=10**6)
    assert simulated_capacity(_DEFAULTS, _HOST).vcpu == 16
    assert settings.booked_root_disk_gib(is_simulated=True) == 0
    assert settings.booked_root_disk_gib(is_simulated=False) == 8


# --- what is really free -------------------------------------------------------------------


def _withheld_mib(host: HostState, booked: dict[str, Resources], **taken: GuestUse) -> int:
    total = host_capacity(_DEFAULTS, host, gpus=0)
    return withheld_mib(host, total=total, booked=booked, taken=taken)


@given(
    booked_n=st.integers(0, 14),
    taken_mib=st.lists(st.integers(0, 4_196), min_size=14, max_size=14),
    others_mib=st.integers(0, 65_536 // 20),
)
def test_guests_that_have_not_touched_their_memory_yet_take_no_room_from_others(
    booked_n: int, taken_mib: list[int], others_mib: int
) -> None:
    taken = {f"i{at}": GuestUse(taken_mib[at], taken_mib[at]) for at in range(booked_n)}
    guests_mib = sum(use.memory_mib for use in taken.values())
    host = _HOST._replace(available_mib=_HOST.memory_mib - others_mib - guests_mib)
    assert _withheld_mib(host, dict.fromkeys(taken, _SMALL), **taken) == 0


def test_what_others_use_beyond_the_reserve_is_withheld() -> None:
    reserve_mib = 65_536 // 20
    host = _HOST._replace(available_mib=_HOST.memory_mib - reserve_mib - 10_000)
    assert 10_000 <= _withheld_mib(host, {}) < 10_064


def test_a_guest_that_grows_within_what_is_booked_changes_nothing() -> None:
    booked = {"i1": _SMALL}
    host = _HOST._replace(available_mib=40_000)
    before = _withheld_mib(host, booked, i1=GuestUse(100, 0))
    after = _withheld_mib(host._replace(available_mib=37_000), booked, i1=GuestUse(3_100, 0))
    assert before == after > 0


def test_a_guest_that_takes_more_than_is_booked_is_seen() -> None:
    booked = {"i1": _SMALL}
    full = _HOST._replace(available_mib=_HOST.memory_mib - 65_536 // 20 - 4_196)
    assert _withheld_mib(full, booked, i1=GuestUse(4_196, 0)) == 0
    leaking = full._replace(available_mib=full.available_mib - 4_096)
    assert _withheld_mib(leaking, booked, i1=GuestUse(2 * 4_196 - 100, 0)) == 4_096


# --- the ledger follows --------------------------------------------------------------------


class _Machine:
    """A host that changes, and a ledger that follows it."""

    def __init__(self) -> None:
        self.now = _HOST
        self.taken: dict[str, GuestUse] = {}
        self.watch = CapacityWatch(_DEFAULTS, lambda: self.now, is_simulated=False, gpus=0)
        self.ledger = Ledger(self.watch.total())

    async def look(self) -> bool:
        async def taken() -> dict[str, GuestUse]:
            return self.taken

        return await self.watch.look(self.ledger, taken=taken)


async def test_room_goes_when_others_take_the_memory_and_is_back_when_they_have_gone() -> None:
    machine = _Machine()
    room = machine.ledger.room(_SMALL)
    assert room
    machine.now = _HOST._replace(available_mib=2_000)
    assert await machine.look()
    assert machine.ledger.room(_SMALL) == 0
    assert not machine.ledger.reserve("i-1", _SMALL)
    assert not await machine.look()
    machine.now = _HOST
    assert await machine.look()
    assert machine.ledger.room(_SMALL) == room


async def test_what_is_withheld_is_no_booking() -> None:
    machine = _Machine()
    assert machine.ledger.reserve("i-1", _SMALL)
    machine.now = _HOST._replace(available_mib=2_000)
    await machine.look()
    assert machine.ledger.release("i-1")
    machine.now = _HOST
    await machine.look()
    assert machine.ledger.free == machine.ledger.total


async def test_a_guest_that_fills_its_disk_changes_nothing_and_others_who_do_take_room() -> None:
    machine = _Machine()
    assert machine.ledger.reserve("i1", _SMALL)
    assert machine.ledger.free.disk_gib == 495 - 8
    machine.taken = {"i1": GuestUse(0, 3 * 1_024)}
    machine.now = _HOST._replace(disk_free_mib=497 * 1_024)
    assert not await machine.look()
    machine.now = _HOST._replace(disk_free_mib=12 * 1_024)
    assert await machine.look()
    assert machine.ledger.free.disk_gib == 12 + 3 - 5 - 8
    assert machine.ledger.room(_SMALL) == 0
    machine.now = _HOST
    assert await machine.look()
    assert machine.ledger.room(_SMALL) == 7  # of eight for 16 vCPU


def test_a_disk_that_outgrows_what_was_booked_for_it_makes_no_room() -> None:
    booked = {"i1": _SMALL}
    assert taken_disk_mib(booked, {"i1": GuestUse(0, 50 * 1_024)}) == 8 * 1_024
    assert taken_disk_mib(booked, {"i2": GuestUse(0, 1_024)}) == 0  # not booked any more


async def test_a_limit_that_is_lowered_takes_no_guest_its_place() -> None:
    machine = _Machine()
    for number in range(4):
        assert machine.ledger.reserve(f"i-{number}", _SMALL)
    machine.now = _HOST._replace(limits=CgroupLimits(memory_mib=10_000, cpus=4.0))
    assert await machine.look()
    assert len(machine.ledger) == 4
    assert machine.ledger.total.vcpu == 4
    assert machine.ledger.room(_SMALL) == 0
    machine.now = _HOST
    assert await machine.look()
    assert machine.ledger.room(_SMALL)


def test_this_host_is_measured(tmp_path: Path) -> None:
    state = Host(tmp_path).state()
    assert state.cores >= 1
    assert 0 < state.available_mib <= state.memory_mib
    assert state.disk_free_mib >= 0
