"""Instances: whatever happens in whatever order, a termination that was confirmed stays one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import pytest

from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.agent.entries import Entry
from fleetcast.agent.instances import REMEMBERED_S, Instances
from fleetcast.agent.journal import Journal, JournalUnwritable, open_database
from fleetcast.capacity import Resources
from tests.agent_parts import (
    EIGHT_VCPU,
    NOW_MS,
    HeldUpDriver,
    UnitNode,
    a_few_turns,
    a_guest,
    a_launch,
    attempt_request,
    instance_id,
    make_journal_refuse,
    unit_node,
)
from tests.stepped_agent import SteppedDisk

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fleetcast.agent.drivers import Guest
    from fleetcast.messages import InstanceState

I1 = instance_id(1)


async def _journal_says(state_dir: Path, *entries: tuple[Guest, InstanceState]) -> None:
    journal = Journal.open(state_dir / "journal.sqlite")
    await journal.write(
        [Entry(guest=guest, state=state, changed_at_s=NOW_MS / 1000) for guest, state in entries]
    )
    journal.close()


async def _states_on_disk(node: UnitNode) -> dict[str, InstanceState]:
    return {entry.guest.instance_id: entry.state for entry in await node.journal.entries()}


async def _guests(node: UnitNode) -> Iterable[str]:
    return (await node.driver.alive()).keys()


async def test_what_is_over_gives_its_room_back_though_the_next_write_of_it_fails() -> None:
    disk, ledger = SteppedDisk(), Ledger(EIGHT_VCPU)
    with contextlib.closing(open_database(":memory:")) as database:
        instances = Instances(
            journal=Journal(database, disk),
            ledger=ledger,
            now_s=lambda: 0,
            capacity_changed=lambda: None,
        )
        entry = Entry(guest=a_guest(1), state="pending", changed_at_s=0)
        ledger.reserve(I1, entry.guest.uses)
        instances.note(entry)
        given_up = msgspec.structs.replace(instances.moved(entry, "terminated"), given_up=True)
        first = asyncio.create_task(instances.record([given_up]))
        await a_few_turns()
        claimed = msgspec.structs.replace(given_up, given_up=False)
        second = asyncio.create_task(instances.record([claimed]))
        await a_few_turns()
        disk.step(fails=False)
        await first
        disk.step(fails=True)
        with pytest.raises(JournalUnwritable):
            await second
        assert instances.get(I1) == given_up
        assert I1 not in ledger


# --- terminating ---------------------------------------------------------------------------


async def test_a_terminated_instance_gives_its_room_back_when_it_has_gone(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_destroy.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        (report,) = await node.owner_actions.terminate([I1])
        assert report.state == "shutting-down"
        assert node.ledger.free != EIGHT_VCPU
        before = node.changes
        driver.may_destroy.set()
        await node.guests.idle()
        assert node.ledger.free == EIGHT_VCPU
        assert node.changes > before
        assert not await _guests(node)


async def test_its_user_data_and_tags_are_wiped_from_disk(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        (entry,) = await node.journal.entries()
        assert entry.guest.user_data_base64 is None
        assert entry.guest.tags == {}


async def test_terminating_while_booting_ends_the_guest_after_its_boot(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.owner_actions.terminate([I1])
        driver.may_boot.set()
        await node.guests.idle()
        assert await _states_on_disk(node) == {I1: "terminated"}
        assert node.ledger.free == EIGHT_VCPU
        assert not await _guests(node)


async def test_a_boot_that_ends_while_the_termination_is_written_does_not_undo_it(
    tmp_path: Path,
) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_destroy.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        terminating = asyncio.create_task(node.owner_actions.terminate([I1]))
        await asyncio.sleep(0)  # the write is under way
        driver.may_boot.set()
        await terminating
        assert node.state_of(1) == "shutting-down"
        assert await _states_on_disk(node) == {I1: "shutting-down"}
        driver.may_destroy.set()
        await node.guests.idle()
        entry = node.instances.get(I1)
        assert entry is not None
        assert entry.state_reason_code == "Client.UserInitiatedShutdown"


async def test_terminating_twice_at_once_is_answered_twice_and_done_once(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        first, second = await asyncio.gather(
            node.owner_actions.terminate([I1]), node.owner_actions.terminate([I1, I1])
        )
        assert [one.state for one in (*first, *second)] == ["shutting-down"] * 2
        await node.guests.idle()
        (third,) = await node.owner_actions.terminate([I1])
        assert third.state == "terminated"
        assert len(node.ledger) == 1


async def test_a_termination_that_cannot_be_written_does_not_happen(tmp_path: Path) -> None:
    await _journal_says(tmp_path, (a_guest(1), "running"))
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        with pytest.raises(JournalUnwritable):
            await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert await _guests(node) == {I1}


async def test_a_destruction_that_failed_is_tried_again_by_a_repeat(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.indestructible.add(I1)
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert node.state_of(1) == "shutting-down"
        assert len(node.ledger) == 1  # what may still run is still accounted for
        driver.indestructible.clear()
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU


async def test_an_unknown_or_hostile_id_touches_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.touch()
    async with unit_node(tmp_path) as node:
        assert await node.owner_actions.terminate(["../precious", instance_id(99)]) == ()
        await node.guests.idle()
    assert outside.exists()


# --- booting -------------------------------------------------------------------------------


async def test_a_boot_that_fails_ends_the_instance_with_a_reason(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.failing.add(I1)
    driver.may_boot.set()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        (report,) = node.instances.reports([I1])
        assert (report.state, report.state_reason_code, report.state_reason_message) == (
            "terminated",
            "Server.InternalError",
            "no such image",
        )
        assert node.ledger.free == EIGHT_VCPU


async def test_a_boot_that_fails_while_it_is_terminated_gives_its_room_back_once(
    tmp_path: Path,
) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.failing.add(I1)
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.owner_actions.terminate([I1])
        driver.may_boot.set()
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU


async def test_boots_run_side_by_side(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1, 2, 3, 4))
        await asyncio.sleep(0)
        assert len(driver.booting) == 4
        driver.may_boot.set()
        await node.guests.idle()


# --- after a crash -------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "running"])
async def test_what_was_promised_is_taken_up_and_booted(
    tmp_path: Path, state: InstanceState
) -> None:
    await _journal_says(tmp_path, (a_guest(1), state))
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert await _guests(node) == {I1}
        assert node.ledger.free == EIGHT_VCPU - Resources(vcpu=2, memory_mib=4096)


async def test_what_may_have_run_before_the_crash_is_kept_when_it_cannot_be_booted(
    tmp_path: Path,
) -> None:
    await _journal_says(tmp_path, (a_guest(1), "pending"))
    driver = HeldUpDriver(tmp_path / "guests")
    driver.failing.add(I1)
    driver.may_boot.set()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.guests.idle()
        (report,) = node.instances.reports()
        assert (report.state, report.state_reason_message) == ("stopped", "no such image")
        assert node.ledger.free == EIGHT_VCPU
        driver.failing.clear()
        await node.owner_actions.start([I1])
        await node.guests.idle()
        assert node.state_of(1) == "running"


async def test_a_hold_that_outlives_a_crash_has_not_run(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=15_000))
    driver = HeldUpDriver(tmp_path / "guests")
    driver.failing.add(I1)
    driver.may_boot.set()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.holds.commit(attempt_request(1))
        await node.guests.idle()
        assert node.state_of(1) == "terminated"


async def test_a_termination_that_the_crash_cut_off_is_done_again(tmp_path: Path) -> None:
    await _journal_says(tmp_path, (a_guest(1), "shutting-down"))
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU


async def test_what_has_ended_uses_nothing_but_is_remembered(tmp_path: Path) -> None:
    await _journal_says(tmp_path, (a_guest(1), "terminated"))
    async with unit_node(tmp_path) as node:
        assert node.ledger.free == EIGHT_VCPU
        assert node.state_of(1) == "terminated"


async def test_guests_that_no_longer_fit_are_kept_and_accounted_for(tmp_path: Path) -> None:
    await _journal_says(tmp_path, *((a_guest(number), "running") for number in range(1, 5)))
    async with unit_node(tmp_path, total=Resources(vcpu=4, memory_mib=8192)) as node:
        assert len(node.ledger) == 4
        assert node.ledger.free.vcpu == -4


async def test_a_guest_that_nobody_knows_is_left_alone(tmp_path: Path) -> None:
    await SimulatedDriver(tmp_path / "guests", now_s=lambda: 0).boot(a_guest(1))
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert await _guests(node) == {I1}


# --- forgetting ----------------------------------------------------------------------------


async def test_only_what_ended_long_ago_is_forgotten(tmp_path: Path) -> None:
    await _journal_says(tmp_path, (a_guest(1), "terminated"), (a_guest(2), "running"))
    async with unit_node(tmp_path) as node:
        node.now_s += REMEMBERED_S
        await node.instances.forget()
        assert node.state_of(1) == "terminated"
        node.now_s += 1
        await node.instances.forget()
        assert node.state_of(1) is None
        assert node.state_of(2) == "running"
        assert instance_id(1) not in await _states_on_disk(node)
