"""Guests that end by themselves: what becomes of their instances, and what may come between."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.drivers import GuestEnd
from fleetcast.agent.drivers.simulated import SimulatedDriver, running_guests
from fleetcast.agent.restarts import DELAYS_S, WINDOW_S
from tests.agent_parts import (
    EIGHT_VCPU,
    HeldUpDriver,
    HeldUpJournal,
    a_few_turns,
    a_launch,
    instance_id,
    let_journal_write,
    make_journal_accept,
    make_journal_refuse,
    unit_node,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fleetcast.agent.drivers.simulated import How
    from fleetcast.messages import ShutdownBehavior
    from tests.agent_parts import UnitNode

I1, I2 = instance_id(1), instance_id(2)


@contextlib.asynccontextmanager
async def _node(
    state_dir: Path, *, driver: SimulatedDriver | None = None
) -> AsyncIterator[UnitNode]:
    """Start a node that follows its guests' ends."""
    async with unit_node(state_dir, driver=driver) as node:
        following = asyncio.create_task(node.guests.keep_following_ends())
        try:
            yield node
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _held_up(folder: Path) -> HeldUpDriver:
    driver = HeldUpDriver(folder / "guests")
    driver.may_boot.set()
    return driver


async def _end(node: UnitNode, number: int, how: How) -> None:
    """Let a guest end, and wait until the agent has done at once what it does at once."""
    assert isinstance(node.driver, SimulatedDriver)
    node.driver.end(instance_id(number), how)
    await a_few_turns()
    await node.guests.idle()


async def _time_passes(node: UnitNode) -> None:
    """Let what waits for its time happen."""
    due, node.timers[:] = list(node.timers), []
    for timer in due:
        timer()
    await node.guests.idle()


def _lose_journal(state_dir: Path) -> None:
    for lost in state_dir.glob("journal.sqlite*"):
        lost.unlink()


def _reason(node: UnitNode, number: int) -> tuple[str | None, str | None]:
    entry = node.instances.get(instance_id(number))
    assert entry
    return entry.state_reason_code, entry.state_reason_message


# --- powered off ---------------------------------------------------------------------------


@pytest.mark.parametrize(("behavior", "state"), [("stop", "stopped"), ("terminate", "terminated")])
async def test_one_that_powers_itself_off_follows_its_shutdown_behaviour(
    tmp_path: Path, behavior: ShutdownBehavior, state: str
) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1, shutdown_behavior=behavior))
        await node.guests.idle()
        await _end(node, 1, "powered off")
        assert node.state_of(1) == state
        assert _reason(node, 1) == (
            "Client.InstanceInitiatedShutdown",
            "Instance initiated shutdown",
        )
        assert node.ledger.free == EIGHT_VCPU
        assert not node.timers
    async with unit_node(tmp_path) as node:
        assert node.state_of(1) == state
        assert not await node.driver.alive()


async def test_one_that_was_stopped_by_its_end_can_be_started_again(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await _end(node, 1, "powered off")
        await node.owner_actions.start([I1])
        await node.guests.idle()
        assert node.state_of(1) == "running"
        await _end(node, 1, "powered off")
        assert node.state_of(1) == "stopped"


async def test_one_that_powered_itself_off_while_no_agent_was_there_is_not_started_again(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        await node.guests.idle()
    SimulatedDriver(tmp_path / "guests", now_s=lambda: 0).end(I1, "powered off")
    async with _node(tmp_path) as node:
        await a_few_turns()
        await node.guests.idle()
        assert (node.state_of(1), node.state_of(2)) == ("stopped", "running")
        assert (await node.driver.alive()).keys() == {I2}


async def test_an_end_that_cannot_be_written_is_seen_to_after_a_restart(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with _node(tmp_path) as node:
        await _end(node, 1, "powered off")
        assert node.state_of(1) == "running"
        assert node.ledger.closed
    make_journal_accept(tmp_path)
    async with _node(tmp_path) as node:
        await a_few_turns()
        await node.guests.idle()
        assert node.state_of(1) == "stopped"


async def test_an_end_that_cannot_be_written_is_seen_to_when_the_disk_has_room_again(
    tmp_path: Path,
) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with _node(tmp_path) as node:
        await _end(node, 1, "powered off")
        assert node.state_of(1) == "running"
        let_journal_write(node.journal)
        await _time_passes(node)
        assert node.state_of(1) == "stopped"


# --- crashed -------------------------------------------------------------------------------


async def test_one_that_crashes_runs_again_and_is_running_all_the_time(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await _end(node, 1, "crashed")
        assert node.state_of(1) == "running"
        assert node.ledger.free != EIGHT_VCPU
        entry = node.instances.get(I1)
        assert entry
        assert entry.is_down
        await _time_passes(node)
        console = await node.driver.console_output(I1)
        assert console
        assert console.output.count(b"booted") == 2
        assert node.state_of(1) == "running"


async def test_one_that_crashes_too_often_is_stopped_and_says_why(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        for _ in DELAYS_S:
            await _end(node, 1, "crashed")
            assert node.state_of(1) == "running"
            await _time_passes(node)
        await _end(node, 1, "crashed")
        assert node.state_of(1) == "stopped"
        assert _reason(node, 1) == (
            "Server.InternalError",
            "4 crashes within 10 minutes, the last one: the simulated guest crashed",
        )
        assert node.ledger.free == EIGHT_VCPU
        # Started by its owner it has all its chances again.
        await node.owner_actions.start([I1])
        await node.guests.idle()
        await _end(node, 1, "crashed")
        assert node.state_of(1) == "running"


async def test_crashes_of_long_ago_do_not_count(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        for _ in range(3 * len(DELAYS_S)):
            await _end(node, 1, "crashed")
            await _time_passes(node)
            node.now_s += WINDOW_S / len(DELAYS_S)
        assert node.state_of(1) == "running"


async def test_crashes_are_counted_across_restarts_of_the_agent_and_each_once(
    tmp_path: Path,
) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    for crash in range(1, len(DELAYS_S) + 1):
        async with _node(tmp_path) as node:
            await _end(node, 1, "crashed")
            assert len(node.timers) == 1  # the agent ends before it is due
        async with _node(tmp_path) as node:  # and is told of the same crash again
            await a_few_turns()
            await node.guests.idle()
            entry = node.instances.get(I1)
            assert entry
            assert len(entry.crashed_at_s) == crash
            await _time_passes(node)
    async with _node(tmp_path) as node:
        await _end(node, 1, "crashed")
        assert node.state_of(1) == "stopped"


async def test_a_restart_that_fails_counts_as_a_crash(tmp_path: Path) -> None:
    driver = _held_up(tmp_path)
    async with _node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        driver.failing.add(I1)
        await _end(node, 1, "crashed")
        for _ in DELAYS_S:
            assert node.state_of(1) == "running"
            await _time_passes(node)
        assert node.state_of(1) == "stopped"
        code, why = _reason(node, 1)
        assert code == "Server.InternalError"
        assert why
        assert why.endswith("no such image")
        assert node.ledger.closed is None  # it is the guest's fault


async def test_crashes_that_cannot_be_written_count_all_the_same(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with _node(tmp_path) as node:
        for _ in DELAYS_S:
            await _end(node, 1, "crashed")
            await _time_passes(node)
            assert I1 in running_guests(tmp_path / "guests")
        await _end(node, 1, "crashed")
        await _time_passes(node)
        assert not running_guests(tmp_path / "guests")
    make_journal_accept(tmp_path)
    async with _node(tmp_path) as node:
        await a_few_turns()
        await node.guests.idle()
        await _time_passes(node)
        assert node.state_of(1) == "running"
        assert I1 in running_guests(tmp_path / "guests")


# --- what comes between --------------------------------------------------------------------


@pytest.mark.parametrize("order", ["stop", "terminate"])
async def test_an_order_goes_before_the_restart_of_what_has_crashed(
    tmp_path: Path, order: str
) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await _end(node, 1, "crashed")
        await getattr(node.owner_actions, order)([I1])
        await node.guests.idle()
        await _time_passes(node)
        assert node.state_of(1) in {"stopped", "terminated"}
        assert not await node.driver.alive()
        assert _reason(node, 1)[0] == "Client.UserInitiatedShutdown"


async def test_what_was_stopped_and_started_since_is_not_restarted_too(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await _end(node, 1, "crashed")
        for order in (node.owner_actions.stop, node.owner_actions.start):
            await order([I1])
            await node.guests.idle()
        await _time_passes(node)
        console = await node.driver.console_output(I1)
        assert console
        assert console.output.count(b"booted") == 2


async def test_a_reboot_of_what_has_crashed_waits_for_its_restart(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await _end(node, 1, "crashed")
        await node.owner_actions.reboot([I1])
        await node.guests.idle()
        await _time_passes(node)
        console = await node.driver.console_output(I1)
        assert console
        assert console.output.count(b"booted") == 2


@pytest.mark.parametrize("order", ["stop", "terminate"])
async def test_an_end_that_comes_while_an_order_is_written_changes_nothing(
    tmp_path: Path, order: str
) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        journal = HeldUpJournal(node.journal)
        ordering = asyncio.create_task(getattr(node.owner_actions, order)([I1]))
        await a_few_turns()
        assert isinstance(node.driver, SimulatedDriver)
        node.driver.end(I1, "powered off")
        await a_few_turns()
        journal.let_go()
        await ordering
        await node.guests.idle()
        assert _reason(node, 1)[0] == "Client.UserInitiatedShutdown"
        assert node.state_of(1) in {"stopped", "terminated"}
        assert node.ledger.free == EIGHT_VCPU


@pytest.mark.parametrize("crashes", [1, len(DELAYS_S) + 1])
async def test_an_order_that_comes_while_a_crash_is_written_goes_before_what_follows_it(
    tmp_path: Path, crashes: int
) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        for _ in range(crashes - 1):
            await _end(node, 1, "crashed")
            await _time_passes(node)
        journal = HeldUpJournal(node.journal)
        assert isinstance(node.driver, SimulatedDriver)
        node.driver.end(I1, "crashed")
        await a_few_turns()  # it is being written
        ordering = asyncio.create_task(node.owner_actions.terminate([I1]))
        await a_few_turns()
        journal.let_go()
        await ordering
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        await _time_passes(node)
        assert not await node.driver.alive()
        assert node.ledger.free == EIGHT_VCPU
    async with unit_node(tmp_path) as node:
        assert node.state_of(1) == "terminated"


async def test_ends_that_are_told_twice_or_of_nobody_change_nothing(tmp_path: Path) -> None:
    ends: asyncio.Queue[GuestEnd] = asyncio.Queue()
    driver = _held_up(tmp_path)
    driver.next_end = ends.get  # type: ignore[method-assign] # a driver that tells too much
    async with _node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2))
        await node.guests.idle()
        for _ in range(2):
            ends.put_nowait(GuestEnd(I1, "powered off", "twice"))
            ends.put_nowait(GuestEnd(I2, "crashed", "twice"))
        ends.put_nowait(GuestEnd(instance_id(3), "crashed", "of nobody"))
        await a_few_turns()
        await node.guests.idle()
        assert (node.state_of(1), node.state_of(2)) == ("stopped", "running")
        crashed = node.instances.get(I2)
        assert crashed
        assert len(crashed.crashed_at_s) == 1
        ends.put_nowait(GuestEnd(I1, "powered off", "late"))
        await a_few_turns()
        await node.guests.idle()
        assert node.state_of(1) == "stopped"


async def test_two_ends_at_once_are_both_seen_to(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        await node.guests.idle()
        assert isinstance(node.driver, SimulatedDriver)
        node.driver.end(I1, "powered off")
        await _end(node, 2, "powered off")
        assert (node.state_of(1), node.state_of(2)) == ("stopped", "stopped")


async def test_a_guest_that_ends_while_its_boot_is_under_way_is_seen_to_after_it(
    tmp_path: Path,
) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    ends: asyncio.Queue[GuestEnd] = asyncio.Queue()
    driver.next_end = ends.get  # type: ignore[method-assign] # quicker than the boot
    async with _node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await a_few_turns()
        ends.put_nowait(GuestEnd(I1, "powered off", "at once"))
        await a_few_turns()
        assert node.state_of(1) == "pending"
        driver.may_boot.set()
        await node.guests.idle()
        assert node.state_of(1) == "stopped"


# --- adoption ------------------------------------------------------------------------------


async def test_a_guest_that_the_journal_does_not_know_is_taken_in_and_accounted_for(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        await node.guests.idle()
    _lose_journal(tmp_path)
    async with unit_node(tmp_path) as node:
        assert {report.instance_id: report.state for report in node.instances.reports()} == {
            I1: "running",
            I2: "running",
        }
        (report, _) = node.instances.reports()
        assert (report.launch_id, report.attempt) == ("r-00000000000000001", 1)
        assert report.account_id == "000000000000"
        assert set(node.ledger) == {I1, I2}
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert (await node.driver.alive()).keys() == {I2}
    async with unit_node(tmp_path) as node:  # it is in the journal now
        assert (node.state_of(1), node.state_of(2)) == ("terminated", "running")


async def test_it_is_taken_in_though_the_journal_cannot_be_written(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    _lose_journal(tmp_path)
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        assert node.state_of(1) == "running"
        assert set(node.ledger) == {I1}
        assert node.ledger.closed


@pytest.mark.parametrize("end", ["stop", "terminate"])
async def test_a_guest_that_runs_though_its_instance_has_ended_is_ended_again(
    tmp_path: Path, end: str
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        entry = node.instances.get(I1)
        assert entry
        await getattr(node.owner_actions, end)([I1])
        await node.guests.idle()
        await node.driver.boot(entry.guest)  # behind the agent's back
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert not await node.driver.alive()
        assert node.state_of(1) in {"stopped", "terminated"}
        assert _reason(node, 1)[0] == "Client.UserInitiatedShutdown"
        assert node.ledger.free == EIGHT_VCPU
