"""What an instance of a type takes of its node, for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fleetcast import messages
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.capacity.served_types import ServedTypes
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.capacity import Resources
from fleetcast.instance_types import ec2_catalogue
from tests.agent_parts import (
    TYPES,
    Delivered,
    a_launch,
    instance_id,
    launch_headers,
    launch_id,
    launch_request,
    unit_node,
)

if TYPE_CHECKING:
    from pathlib import Path


class _CostlyDriver(SimulatedDriver):
    """Takes a tenth of each guest's memory, and 100 MiB."""

    def overhead_mib(self, memory_mib: int) -> int:
        return 100 + memory_mib // 10


def test_a_type_needs_its_memory_what_runs_it_and_its_disk() -> None:
    served = ServedTypes(TYPES, overhead_mib=lambda memory_mib: memory_mib // 8, root_disk_gib=8)
    assert served.need("t3.medium") == Resources(vcpu=2, memory_mib=4_096 + 512, disk_gib=8)


def test_a_root_disk_is_booked_as_large_as_it_was_asked_for() -> None:
    served = ServedTypes(TYPES, overhead_mib=lambda _: 0, root_disk_gib=8)
    assert [served.disk_gib(None), served.disk_gib(100)] == [8, 100]


def test_a_node_that_keeps_no_account_of_its_disk_books_none() -> None:
    served = ServedTypes(TYPES, overhead_mib=lambda _: 0)
    assert served.disk_gib(100) == served.need("t3.medium").disk_gib == 0


def test_types_that_need_the_same_have_the_same_room() -> None:
    types = {one.name: one for one in ec2_catalogue()}
    served = ServedTypes(types, overhead_mib=lambda memory_mib: memory_mib // 50)
    ledger = Ledger(Resources(vcpu=64, memory_mib=131_072, gpus=2))
    rooms = {name: ledger.room(served.need(name)) for name in served}
    assert served.room(ledger) == {name: room for name, room in rooms.items() if room}
    assert sum(map(len, served.by_need.values())) == len(served) == len(types)


async def test_a_guest_is_booked_as_its_type_is_said_to_need(tmp_path: Path) -> None:
    driver = _CostlyDriver(tmp_path / "guests", now_s=lambda: 0.0)
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        used = node.ledger.total - node.ledger.free
        assert used == node.served_types.need("t3.medium")
        assert used.memory_mib == 4_096 + 100 + 409


async def test_a_guest_stays_booked_with_what_it_took_when_it_was_launched(tmp_path: Path) -> None:
    driver = _CostlyDriver(tmp_path / "guests", now_s=lambda: 0.0)
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        entry = node.instances.get(instance_id(1))
        assert entry is not None
        assert entry.guest.launch_id == launch_id(1)
        booked = entry.guest.uses
    async with unit_node(tmp_path) as node:  # whose driver takes nothing
        assert node.ledger.total - node.ledger.free == booked


async def test_a_node_admits_only_what_fits_with_what_runs_it(tmp_path: Path) -> None:
    driver = _CostlyDriver(tmp_path / "guests", now_s=lambda: 0.0)
    async with unit_node(
        tmp_path, driver=driver, total=Resources(vcpu=8, memory_mib=4 * 4_096)
    ) as node:
        launches = [a_launch(number, launch=number) for number in range(1, 5)]
        await node.launch(*launches)
        answers = [one.launch_reply() for one in launches]
        assert [isinstance(one, messages.Accepted) for one in answers] == [True, True, True, False]


def _a_launch_with_root_disk(number: int, root_disk_gib: int) -> Delivered:
    request = messages.decode(launch_request(number), messages.LaunchRequest)
    asked = msgspec.structs.replace(request, root_disk_gib=root_disk_gib)
    return Delivered(messages.encode(asked), launch_headers(number))


async def test_a_root_disk_that_does_not_fit_is_not_called_a_lost_race(tmp_path: Path) -> None:
    total = Resources(vcpu=8, memory_mib=32_768, disk_gib=100)
    async with unit_node(tmp_path, total=total, root_disk_gib=8) as node:
        large, larger, usual = (
            _a_launch_with_root_disk(1, 60),
            _a_launch_with_root_disk(2, 60),
            a_launch(3, launch=3),
        )
        await node.launch(large, larger, usual)
        # Asked again it would come back at once: there is room for others of its type.
        assert larger.rejected() == "node_fault"
        assert large.accepted()
        assert usual.accepted()
        assert node.ledger.free.disk_gib == 100 - 60 - 8
        await node.launch(*(a_launch(number, launch=number) for number in range(4, 7)))
        assert node.desk.outcomes == {"accepted": 4, "node_fault": 1, "full": 1}
