"""Stop, start, reboot: an instance stays on its node, and takes no room while it is stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.journal import JournalUnwritable
from fleetcast.capacity import Resources
from tests.agent_parts import (
    EIGHT_VCPU,
    HeldUpDriver,
    HeldUpJournal,
    a_few_turns,
    a_launch,
    attempt_request,
    instance_id,
    make_journal_refuse,
    unit_node,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fleetcast.messages import InstanceReport
    from tests.agent_parts import UnitNode

I1, I2 = instance_id(1), instance_id(2)
_ONE_USED = EIGHT_VCPU - Resources(vcpu=2, memory_mib=4096)


def _states(reports: Iterable[InstanceReport]) -> dict[str, str]:
    return {report.instance_id: report.state for report in reports}


async def _run(node: UnitNode, *numbers: int) -> None:
    await node.launch(a_launch(*numbers))
    await node.guests.idle()


async def _stop(node: UnitNode, number: int = 1) -> None:
    await node.owner_actions.stop([instance_id(number)])
    await node.guests.idle()


# --- stop ----------------------------------------------------------------------------------


async def test_a_stop_gives_its_room_back_when_the_guest_is_down(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        outcome = await node.owner_actions.stop([I1])
        assert _states(outcome.reports) == {I1: "stopping"}
        assert outcome.refused == {}
        assert node.ledger.free == _ONE_USED
        before = node.changes
        await node.guests.idle()
        assert node.state_of(1) == "stopped"
        assert node.ledger.free == EIGHT_VCPU
        assert node.changes > before
        assert not await node.driver.alive()


async def test_a_stop_may_be_repeated(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        first, second = await asyncio.gather(
            node.owner_actions.stop([I1]), node.owner_actions.stop([I1, I1])
        )
        assert first.refused == second.refused == {}
        await node.guests.idle()
        third = await node.owner_actions.stop([I1])
        assert _states(third.reports) == {I1: "stopped"}
        assert third.refused == {}
        assert node.ledger.free == EIGHT_VCPU


async def test_what_does_not_run_cannot_be_stopped(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2, hold_ms=1_000))
        outcome = await node.owner_actions.stop([I1, I2, instance_id(9)])
        assert outcome.refused == {I1: "state", I2: "state"}
        assert _states(outcome.reports) == {I1: "pending", I2: "pending"}
        driver.may_boot.set()
        await node.guests.idle()
        await node.owner_actions.terminate([I1])
        assert (await node.owner_actions.stop([I1])).refused == {I1: "state"}
        await node.guests.idle()


async def test_a_stop_is_on_disk_when_it_is_answered_and_ends_after_a_crash(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_stop.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.owner_actions.stop([I1])
        (entry,) = await node.journal.entries()
        assert entry.state == "stopping"
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert node.state_of(1) == "stopped"
        assert not await node.driver.alive()
        assert node.ledger.free == EIGHT_VCPU


async def test_what_is_stopped_stays_so_after_a_crash_and_uses_no_room(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert node.state_of(1) == "stopped"
        assert node.ledger.free == EIGHT_VCPU
        assert not await node.driver.alive()


async def test_a_stop_that_cannot_be_written_does_not_happen(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        with pytest.raises(JournalUnwritable):
            await node.owner_actions.stop([I1])
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert (await node.driver.alive()).keys() == {I1}
        assert node.ledger.closed is not None


async def test_a_termination_while_it_stops_ends_it(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_stop.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await _run(node, 1)
        await node.owner_actions.stop([I1])
        await a_few_turns()
        await node.owner_actions.terminate([I1])
        driver.may_stop.set()
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU


async def test_a_stopped_instance_is_terminated_and_leaves_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert await node.guests.console_output(I1) is None
        assert node.ledger.free == EIGHT_VCPU


async def test_a_stopped_instance_is_given_up_like_any_other(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        await node.holds.give_up(attempt_request(1), "test")
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert await node.guests.console_output(I1) is None


async def test_a_repeated_launch_finds_its_stopped_instance(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        again = a_launch(1)
        await node.launch(again)
        await node.guests.idle()
        assert again.accepted() == (I1,)
        assert node.state_of(1) == "stopped"
        assert node.ledger.free == EIGHT_VCPU


# --- start ---------------------------------------------------------------------------------


async def test_a_start_needs_its_room_again_and_runs(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        before = node.changes
        outcome = await node.owner_actions.start([I1])
        assert node.changes > before
        assert _states(outcome.reports) == {I1: "pending"}
        assert outcome.reports[0].state_reason_code is None
        assert outcome.refused == {}
        assert node.ledger.free == _ONE_USED
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert (await node.driver.alive()).keys() == {I1}


async def test_a_start_without_room_is_refused_as_full(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1, 2)
        await _stop(node, 1)
        await _stop(node, 2)
        await node.launch(a_launch(3, 4, 5, launch=2))
        outcome = await node.owner_actions.start([I1, I2])
        assert outcome.refused == {I2: "full"}
        assert _states(outcome.reports) == {I1: "pending", I2: "stopped"}
        await node.guests.idle()
        assert node.ledger.free == EIGHT_VCPU - Resources(vcpu=8, memory_mib=16_384)


async def test_a_closed_node_starts_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        node.ledger.close("set aside", "test")
        assert (await node.owner_actions.start([I1])).refused == {I1: "full"}


async def test_a_start_may_be_repeated(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        outcomes = await asyncio.gather(*(node.owner_actions.start([I1]) for _ in range(3)))
        assert [outcome.refused for outcome in outcomes] == [{}] * 3
        await node.guests.idle()
        assert (await node.owner_actions.start([I1])).refused == {}
        assert node.ledger.free == _ONE_USED


async def test_what_is_not_stopped_cannot_be_started(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_stop.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await _run(node, 1)
        await node.launch(a_launch(2, launch=2, hold_ms=1_000))
        await node.owner_actions.stop([I1])
        outcome = await node.owner_actions.start([I1, I2])
        assert outcome.refused == {I1: "state", I2: "state"}
        driver.may_stop.set()
        await node.guests.idle()
        await node.owner_actions.terminate([I1])
        assert (await node.owner_actions.start([I1])).refused == {I1: "state"}


async def test_a_start_that_a_crash_cut_off_is_done_again(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.owner_actions.start([I1])
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert node.ledger.free == _ONE_USED


async def test_a_start_that_cannot_be_written_takes_no_room(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        with pytest.raises(JournalUnwritable):
            await node.owner_actions.start([I1])
        await node.guests.idle()
        assert node.state_of(1) == "stopped"
        assert node.ledger.free == EIGHT_VCPU
        assert not await node.driver.alive()


async def test_a_start_while_the_stop_is_written_keeps_its_room(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_stop.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await _run(node, 1)
        await node.owner_actions.stop([I1])
        await a_few_turns()
        disk = HeldUpJournal(node.journal)
        driver.may_stop.set()
        await a_few_turns()
        assert node.state_of(1) == "stopped"  # in memory, and on its way to the disk
        starting = asyncio.create_task(node.owner_actions.start([I1]))
        await a_few_turns()
        disk.let_go()
        assert (await starting).refused == {}
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert node.ledger.free == _ONE_USED
        assert (await driver.alive()).keys() == {I1}


async def test_a_start_that_fails_leaves_the_instance_stopped_with_the_reason(
    tmp_path: Path,
) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    async with unit_node(tmp_path, driver=driver) as node:
        await _run(node, 1)
        await _stop(node)
        driver.failing.add(I1)
        await node.owner_actions.start([I1])
        await node.guests.idle()
        (report,) = node.instances.reports()
        assert (report.state, report.state_reason_message) == ("stopped", "no such image")
        assert node.ledger.free == EIGHT_VCPU
        driver.failing.clear()
        await node.owner_actions.start([I1])
        await node.guests.idle()
        assert node.state_of(1) == "running"


# --- reboot --------------------------------------------------------------------------------


async def test_a_reboot_that_a_stop_has_overtaken_is_not_done_later(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await asyncio.gather(node.owner_actions.reboot([I1]), node.owner_actions.stop([I1]))
        await node.guests.idle()
        for _ in range(2):  # the second one finds it running, and looks after it again
            await node.owner_actions.start([I1])
            await node.guests.idle()
        console = await node.guests.console_output(I1)
        assert console is not None
        assert b"rebooted" not in console.output


async def test_a_reboot_leaves_it_running(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        outcome = await node.owner_actions.reboot([I1])
        assert _states(outcome.reports) == {I1: "running"}
        assert outcome.refused == {}
        await node.guests.idle()
        console = await node.guests.console_output(I1)
        assert console is not None
        assert console.output.count(b"rebooted") == 1
        assert node.ledger.free == _ONE_USED


async def test_what_does_not_run_cannot_be_rebooted(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _run(node, 1)
        await _stop(node)
        assert (await node.owner_actions.reboot([I1, instance_id(9)])).refused == {I1: "state"}
        await node.owner_actions.start([I1])
        await node.guests.idle()
        console = await node.guests.console_output(I1)
        assert console is not None
        assert b"rebooted" not in console.output
