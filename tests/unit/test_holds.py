"""Holds: nothing boots without its Commit, and what was given up stays given up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.holds import OrderExpired
from fleetcast.agent.instances import REMEMBERED_S
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.capacity import Resources
from tests.agent_parts import (
    EIGHT_VCPU,
    NOW_MS,
    HeldUpDriver,
    HeldUpJournal,
    a_few_turns,
    a_launch,
    attempt_request,
    instance_id,
    launch_id,
    make_journal_refuse,
    unit_node,
)
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fleetcast.messages import InstanceReport
    from tests.agent_parts import UnitNode

I1, I2 = instance_id(1), instance_id(2)
LEASE_MS = 15_000
_ONE_USED = EIGHT_VCPU - Resources(vcpu=2, memory_mib=4096)


def _states(reports: Iterable[InstanceReport]) -> dict[str, str]:
    return {report.instance_id: report.state for report in reports}


async def _attempts_fenced(node: UnitNode) -> dict[str, int]:
    return {fence.instance_id: fence.attempt for fence in await node.journal.fences()}


# --- holding -------------------------------------------------------------------------------


async def test_a_hold_takes_room_and_boots_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        request = a_launch(1, hold_ms=LEASE_MS)
        await node.launch(request)
        await node.guests.idle()
        assert request.accepted() == (I1,)
        (report,) = node.instances.reports()
        assert (report.state, report.held) == ("pending", True)
        assert node.ledger.free == _ONE_USED
        assert not await node.driver.alive()


async def test_what_becomes_of_a_hold_is_logged_with_its_launch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with unit_node(tmp_path) as node:
        await node.launch(
            a_launch(1, hold_ms=LEASE_MS), a_launch(2, launch=2, hold_ms=2 * LEASE_MS)
        )
        node.now_s += LEASE_MS / 1000
        await node.holds.lapse()
        await node.holds.commit(attempt_request(2, launch=2))
        await node.guests.idle()
    logged = {record.getMessage(): getattr(record, "instances", None) for record in caplog.records}
    assert logged["holds lapsed"] == [{"instance": I1, "launch": launch_id(1)}]
    committed = {"instance": I2, "launch": launch_id(2)}
    assert logged["instances on their way"] == [committed | {"state": "pending"}]
    assert logged["instances running"] == [committed]


async def test_a_hold_is_still_held_after_a_restart(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert not await node.driver.alive()
        assert node.ledger.free == _ONE_USED
        assert _states(await node.holds.commit(attempt_request(1))) == {I1: "pending"}


async def test_a_repeated_hold_is_answered_the_same_and_not_prolonged(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        first, again = a_launch(1, hold_ms=LEASE_MS), a_launch(1, hold_ms=LEASE_MS)
        await node.launch(first)
        node.now_s += 0.5
        await node.launch(again)
        assert again.answers == first.answers
        assert [one.held_until_ms for one in node.instances.held()] == [NOW_MS + LEASE_MS]


async def test_a_newer_attempt_holds_on_a_new_lease(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s += 0.5
        await node.launch(a_launch(1, attempt=2, hold_ms=LEASE_MS))
        assert [one.held_until_ms for one in node.instances.held()] == [NOW_MS + LEASE_MS + 500]
        assert await node.holds.commit(attempt_request(1)) == ()
        assert _states(await node.holds.commit(attempt_request(1, attempt=2))) == {I1: "pending"}


async def test_a_newer_attempt_that_does_not_hold_boots_what_was_held(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        await node.launch(a_launch(1, attempt=2))
        await node.guests.idle()
        assert node.state_of(1) == "running"


async def test_a_newer_attempt_that_holds_leaves_what_runs_running(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.launch(a_launch(1, attempt=2, hold_ms=LEASE_MS))
        assert node.state_of(1) == "running"
        assert _states(await node.holds.commit(attempt_request(1, attempt=2))) == {I1: "running"}


# --- committing ----------------------------------------------------------------------------


async def test_what_is_committed_boots(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2, hold_ms=LEASE_MS))
        reports = await node.holds.commit(attempt_request(1))
        assert _states(reports) == {I1: "pending"}
        await node.guests.idle()
        assert (await node.driver.alive()).keys() == {I1}
        assert node.state_of(1) == "running"
        assert node.instances.reports([I2])[0].held is True


async def test_a_commit_is_on_disk_when_it_is_answered(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        await node.holds.commit(attempt_request(1))
        (entry,) = await node.journal.entries()
        assert not entry.is_held
    async with unit_node(tmp_path) as node:  # it died before it had booted
        await node.guests.idle()
        assert (await node.driver.alive()).keys() == {I1}


async def test_a_repeated_commit_is_answered_with_what_runs(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        await node.holds.commit(attempt_request(1))
        await node.guests.idle()
        node.now_s += 60
        assert _states(await node.holds.commit(attempt_request(1))) == {I1: "running"}


@pytest.mark.parametrize("attempt", [1, 3])
async def test_only_exactly_the_attempt_is_committed(tmp_path: Path, attempt: int) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, attempt=2, hold_ms=LEASE_MS))
        assert await node.holds.commit(attempt_request(1, attempt=attempt)) == ()
        await node.guests.idle()
        assert not await node.driver.alive()


async def test_another_launch_commits_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, launch=1, hold_ms=LEASE_MS))
        assert await node.holds.commit(attempt_request(1, launch=2)) == ()
        await node.guests.idle()
        assert not await node.driver.alive()


async def test_what_is_unknown_is_absent_from_the_answer(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        assert await node.holds.commit(attempt_request(1, 2)) == ()


async def test_a_commit_that_cannot_be_written_boots_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        with pytest.raises(JournalUnwritable):
            await node.holds.commit(attempt_request(1))
        await node.guests.idle()
        assert not await node.driver.alive()
        assert node.instances.reports()[0].held is True
        assert node.ledger.closed is not None


# --- leases --------------------------------------------------------------------------------


async def test_a_hold_lapses_when_its_lease_has_ended_and_not_before(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s += LEASE_MS / 1000 - 0.001
        await node.holds.lapse()
        assert node.state_of(1) == "pending"
        before = node.changes
        node.now_s += 0.001
        await node.holds.lapse()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU
        assert node.changes > before
        assert await node.holds.commit(attempt_request(1)) == ()
        await node.guests.idle()
        assert not await node.driver.alive()


async def test_a_commit_after_the_lease_fails_though_nobody_has_looked_yet(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s += LEASE_MS / 1000
        assert await node.holds.commit(attempt_request(1)) == ()
        await node.holds.lapse()
        await node.guests.idle()
        assert node.state_of(1) == "terminated"


async def test_a_lease_that_ended_while_the_agent_was_down_has_ended(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
    async with unit_node(tmp_path) as node:
        node.now_s += LEASE_MS / 1000
        assert await node.holds.commit(attempt_request(1)) == ()
        await node.holds.lapse()
        assert node.ledger.free == EIGHT_VCPU
        assert not await node.driver.alive()


async def test_a_clock_that_is_set_back_keeps_no_room_for_a_hold(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s -= 3_600
        assert await node.holds.commit(attempt_request(1)) == ()
        await node.holds.lapse()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU


async def test_a_commit_while_the_lapse_is_written_comes_too_late(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        disk = HeldUpJournal(node.journal)
        node.now_s += LEASE_MS / 1000
        lapsing = asyncio.create_task(node.holds.lapse())
        await asyncio.sleep(0)
        node.now_s -= LEASE_MS / 1000  # a clock that is set back opens no way around it
        committing = asyncio.create_task(node.holds.commit(attempt_request(1)))
        await asyncio.sleep(0)
        disk.let_go()
        await lapsing
        assert await committing == ()
        await node.guests.idle()
        assert not await node.driver.alive()


async def test_a_lapse_while_the_commit_is_written_takes_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        disk = HeldUpJournal(node.journal)
        committing = asyncio.create_task(node.holds.commit(attempt_request(1)))
        await asyncio.sleep(0)
        node.now_s += LEASE_MS / 1000
        lapsing = asyncio.create_task(node.holds.lapse())
        await asyncio.sleep(0)
        disk.let_go()
        await lapsing
        assert _states(await committing) == {I1: "pending"}
        await node.guests.idle()
        assert node.state_of(1) == "running"


async def test_holds_lapse_by_themselves(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s += LEASE_MS / 1000
        keeping = asyncio.create_task(node.holds.keep_lapsing())
        try:
            await eventually(lambda: asyncio.sleep(0, node.state_of(1) == "terminated"))
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def test_a_lapse_that_cannot_be_written_ends_nothing_else(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        node.now_s += LEASE_MS / 1000
        keeping = asyncio.create_task(node.holds.keep_lapsing())
        await eventually(lambda: asyncio.sleep(0, node.ledger.closed))
        assert not keeping.done()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert await node.holds.commit(attempt_request(1)) == ()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_what_has_lapsed_comes_back_under_a_newer_attempt_only(
    tmp_path: Path, attempt: int
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s += LEASE_MS / 1000
        await node.holds.lapse()
        again = a_launch(1, attempt=attempt, expires_at_ms=NOW_MS + 2 * LEASE_MS)
        await node.launch(again)
        await node.guests.idle()
        if attempt == 1:
            assert again.rejected() == "node_fault"
        else:
            assert again.accepted() == (I1,)
        assert (await node.driver.alive()).keys() == ({I1} if attempt == 2 else set())


async def test_a_repeat_after_the_lease_is_refused_though_nobody_has_looked_yet(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        node.now_s += LEASE_MS / 1000
        again = a_launch(1, hold_ms=LEASE_MS, expires_at_ms=NOW_MS + 2 * LEASE_MS)
        await node.launch(again)
        assert again.rejected() == "node_fault"


# --- giving up -----------------------------------------------------------------------------


@pytest.mark.parametrize("hold_ms", [None, LEASE_MS])
async def test_what_is_given_up_leaves_nothing_behind(tmp_path: Path, hold_ms: int | None) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=hold_ms))
        await node.guests.idle()
        reports = await node.holds.give_up(attempt_request(1), "test")
        assert _states(reports) == {I1: "terminated" if hold_ms else "shutting-down"}
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU
        assert not await node.driver.alive()


async def test_every_named_instance_is_fenced_known_or_not(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.holds.give_up(attempt_request(1, 2, attempt=3), "test")
        assert await _attempts_fenced(node) == {I1: 3, I2: 3}
    async with unit_node(tmp_path) as node:
        for number in (1, 2):
            late = a_launch(number, attempt=3)
            await node.launch(late)
            assert late.rejected() == "node_fault"
        assert len(node.ledger) == 0


async def test_a_request_that_comes_after_its_cancellation_launches_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        assert await node.holds.give_up(attempt_request(1), "test") == ()
        late, next_one = a_launch(1), a_launch(1, attempt=2)
        await node.launch(late, next_one)
        assert late.rejected() == "node_fault"
        assert next_one.accepted() == (I1,)


async def test_an_older_fence_never_lowers_a_newer_one(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.holds.give_up(attempt_request(1, attempt=5), "test")
        await node.holds.give_up(attempt_request(1, attempt=2), "test")
        late = a_launch(1, attempt=4)
        await node.launch(late)
        assert late.rejected() == "node_fault"
        assert await _attempts_fenced(node) == {I1: 5}


async def test_what_is_held_under_a_newer_attempt_stays(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, attempt=2))
        await node.guests.idle()
        (report,) = await node.holds.give_up(attempt_request(1, attempt=1), "test")
        assert (report.state, report.attempt) == ("running", 2)
        assert (await node.driver.alive()).keys() == {I1}


async def test_what_another_launch_holds_stays(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, launch=1))
        assert await node.holds.give_up(attempt_request(1, launch=2, attempt=9), "test") == ()
        await node.guests.idle()
        assert node.state_of(1) == "running"


async def test_what_was_given_up_comes_back_under_a_newer_attempt(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.holds.give_up(attempt_request(1), "test")
        await node.guests.idle()
        again = a_launch(1, attempt=2)
        await node.launch(again)
        await node.guests.idle()
        assert again.accepted() == (I1,)
        assert (await node.driver.alive()).keys() == {I1}
        (entry,) = await node.journal.entries()
        assert (entry.guest.attempt, entry.guest.user_data_base64) == (2, "c2VjcmV0")
        assert node.ledger.free == _ONE_USED


async def test_what_is_still_being_destroyed_does_not_come_back_yet(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_destroy.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.holds.give_up(attempt_request(1), "test")
        early = a_launch(1, attempt=2)
        await node.launch(early)
        assert early.rejected() == "node_fault"
        driver.may_destroy.set()
        await node.guests.idle()
        assert node.ledger.free == EIGHT_VCPU


async def test_what_its_owner_has_terminated_never_comes_back(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2))
        await node.owner_actions.terminate([I1])
        await node.holds.give_up(attempt_request(1), "test")
        await node.holds.give_up(attempt_request(2, launch=2), "test")
        await node.owner_actions.terminate([I2])
        await node.guests.idle()
        for number in (1, 2):
            again = a_launch(number, launch=number, attempt=7)
            await node.launch(again)
            assert again.rejected() == "node_fault"
    async with unit_node(tmp_path) as node:
        again = a_launch(2, launch=2, attempt=7)
        await node.launch(again)
        assert again.rejected() == "node_fault"


async def test_giving_up_twice_is_answered_twice_and_done_once(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2))
        await node.guests.idle()
        await asyncio.gather(*(node.holds.give_up(attempt_request(1), "test") for _ in range(3)))
        await node.guests.idle()
        reports = await node.holds.give_up(attempt_request(1), "test")
        assert _states(reports) == {I1: "terminated"}
        assert len(node.ledger) == 1


async def test_a_cancellation_waits_for_the_promise_and_takes_it_back(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        request = a_launch(1)
        node.desk.deliver(request)
        await a_few_turns()
        giving_up = asyncio.create_task(node.holds.give_up(attempt_request(1), "test"))
        await a_few_turns()
        assert not giving_up.done()
        disk.let_go()
        assert set(_states(await giving_up)) == {I1}
        await node.desk.settled()
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU
        assert not await node.driver.alive()


async def test_a_cancellation_in_the_middle_of_a_promise_that_fails_finds_nothing(
    tmp_path: Path,
) -> None:
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        request = a_launch(1)
        node.desk.deliver(request)
        await a_few_turns()
        giving_up = asyncio.create_task(node.holds.give_up(attempt_request(1), "test"))
        await asyncio.sleep(0)
        disk.let_go()
        assert await giving_up == ()
        assert request.rejected() == "node_fault"
        assert node.ledger.free == EIGHT_VCPU
        assert await _attempts_fenced(node) == {I1: 1}


async def test_a_release_while_it_boots_ends_the_guest_after_its_boot(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await asyncio.sleep(0)
        assert driver.booting == {I1}
        await node.holds.give_up(attempt_request(1), "test")
        driver.may_boot.set()
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert not await driver.alive()
        assert node.ledger.free == EIGHT_VCPU


async def test_a_release_while_the_commit_is_written_wins(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        disk = HeldUpJournal(node.journal)
        committing = asyncio.create_task(node.holds.commit(attempt_request(1)))
        await asyncio.sleep(0)
        releasing = asyncio.create_task(node.holds.give_up(attempt_request(1), "test"))
        await asyncio.sleep(0)
        disk.let_go()
        assert await committing == ()
        assert set(_states(await releasing)) == {I1}
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert not await node.driver.alive()


async def test_what_was_given_up_stays_so_after_a_crash(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_destroy.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.holds.give_up(attempt_request(1), "test")
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert not await node.driver.alive()
        again = a_launch(1, attempt=2)
        await node.launch(again)
        assert again.accepted() == (I1,)


async def test_a_release_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        with pytest.raises(JournalUnwritable):
            await node.holds.give_up(attempt_request(1), "test")
        await node.guests.idle()
        assert node.state_of(1) == "running"
        assert (await node.driver.alive()).keys() == {I1}
        assert node.ledger.closed is not None


async def test_a_release_that_relies_on_one_that_was_not_written_is_not_confirmed(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        disk = HeldUpJournal(node.journal)
        first = asyncio.create_task(node.holds.give_up(attempt_request(1), "test"))
        await a_few_turns()
        second = asyncio.create_task(node.holds.give_up(attempt_request(1), "test"))
        await a_few_turns()
        disk.let_go()
        with pytest.raises(JournalUnwritable):
            await first
        with pytest.raises(JournalUnwritable):
            await second
        assert node.state_of(1) == "running"


async def test_a_hold_is_terminated_like_any_other_instance(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert node.state_of(1) == "terminated"
        assert node.ledger.free == EIGHT_VCPU
        assert await node.holds.commit(attempt_request(1)) == ()


# --- orders that come late -----------------------------------------------------------------


async def test_a_late_order_does_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS), a_launch(2, launch=2))
        await node.guests.idle()
        with pytest.raises(OrderExpired):
            await node.holds.commit(attempt_request(1, expires_at_ms=NOW_MS))
        late = attempt_request(2, launch=2, expires_at_ms=NOW_MS)
        with pytest.raises(OrderExpired):
            await node.holds.give_up(late, "test")
        await node.guests.idle()
        assert node.instances.reports([I1])[0].held is True
        assert node.state_of(2) == "running"
        assert await _attempts_fenced(node) == {}


async def test_an_order_in_time_is_carried_out(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        order = attempt_request(1, expires_at_ms=NOW_MS + 1)
        assert set(_states(await node.holds.commit(order))) == {I1}
        assert set(_states(await node.holds.give_up(order, "test"))) == {I1}


async def test_an_order_that_becomes_late_while_a_promise_is_written_does_nothing(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        node.desk.deliver(a_launch(1))
        await a_few_turns()
        order = attempt_request(1, expires_at_ms=NOW_MS + 1)
        giving_up = asyncio.create_task(node.holds.give_up(order, "test"))
        await asyncio.sleep(0)
        node.now_s += 1
        disk.let_go()
        with pytest.raises(OrderExpired):
            await giving_up
        await node.guests.idle()
        assert node.state_of(1) == "running"


# --- finding -------------------------------------------------------------------------------


async def test_a_launch_is_located_held_running_or_ended(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2), a_launch(3, launch=2))
        await node.launch(a_launch(4, hold_ms=LEASE_MS))
        await node.guests.idle()
        await node.owner_actions.terminate([I2])
        await node.guests.idle()
        reports = await node.instances.locate(launch_id(1))
        assert _states(reports) == {I1: "running", I2: "terminated", instance_id(4): "pending"}
        assert [one.instance_id for one in reports if one.held is True] == [instance_id(4)]
        assert await node.instances.locate(launch_id(9)) == ()


@pytest.mark.parametrize("is_written", [True, False])
async def test_what_is_still_being_promised_is_located_once_that_is_decided(
    tmp_path: Path, *, is_written: bool
) -> None:
    if not is_written:
        make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        node.desk.deliver(a_launch(1, hold_ms=LEASE_MS))
        await a_few_turns()
        assert node.instances.reports() == ()
        locating = asyncio.create_task(node.instances.locate(launch_id(1)))
        await a_few_turns()
        assert not locating.done()
        disk.let_go()
        assert _states(await locating) == ({I1: "pending"} if is_written else {})


async def test_what_is_being_taken_over_is_reported_as_it_is_on_disk(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        disk = HeldUpJournal(node.journal)
        node.desk.deliver(a_launch(1, attempt=2))
        await a_few_turns()
        assert [one.attempt for one in node.instances.reports()] == [1]
        disk.let_go()
        await node.desk.settled()
        assert [one.attempt for one in node.instances.reports()] == [2]


# --- fences are forgotten ------------------------------------------------------------------


async def test_a_fence_is_kept_for_a_day(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.holds.give_up(attempt_request(1), "test")
        node.now_s += REMEMBERED_S
        await node.instances.forget()
        late = a_launch(1, expires_at_ms=2 * NOW_MS)
        await node.launch(late)
        assert late.rejected() == "node_fault"
        node.now_s += 1
        await node.instances.forget()
        assert await _attempts_fenced(node) == {}


async def test_what_is_written_is_not_taken_on_under_another_attempt_meanwhile(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, hold_ms=LEASE_MS))
        disk = HeldUpJournal(node.journal)
        releasing = asyncio.create_task(node.holds.give_up(attempt_request(1), "test"))
        await asyncio.sleep(0)
        early = a_launch(1, attempt=2)
        node.desk.deliver(early)
        await a_few_turns()
        disk.let_go()
        await releasing
        await node.desk.settled()
        assert early.rejected() == "node_fault"
        assert node.ledger.free == EIGHT_VCPU
        await node.launch(a_launch(1, attempt=2))
        assert node.ledger.free == _ONE_USED
