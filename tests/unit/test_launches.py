"""The launch desk: each request gets one answer, and an ACCEPT is on disk before it is said."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from fleetcast import messages
from fleetcast.agent.launches import MAX_BATCH
from fleetcast.capacity import Resources
from tests.agent_parts import (
    EIGHT_VCPU,
    NOW_MS,
    Delivered,
    HeldUpDriver,
    HeldUpJournal,
    UnitNode,
    a_few_turns,
    a_launch,
    instance_id,
    launch_headers,
    launch_request,
    make_journal_refuse,
    unit_node,
)

if TYPE_CHECKING:
    from pathlib import Path


class _Unanswerable(Delivered):
    """A request whose headers or inbox can't be answered."""

    async def respond(self, data: bytes) -> None:
        await super().respond(data)
        raise RuntimeError("no such inbox")


async def _on_disk(node: UnitNode) -> set[str]:
    return {entry.guest.instance_id for entry in await node.journal.entries()}


async def test_what_fits_is_accepted_and_the_rest_is_full(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        requests = [a_launch(number, launch=number) for number in range(1, 6)]
        await node.launch(*requests)
        assert [one.accepted() for one in requests[:4]] == [(instance_id(n),) for n in range(1, 5)]
        assert requests[4].rejected() == "full"


async def test_one_request_for_many_gets_as_many_as_fit_in_their_order(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        request = a_launch(*range(1, 1001))
        await node.launch(request)
        assert request.accepted() == tuple(instance_id(number) for number in range(1, 5))


async def test_every_type_shares_the_same_host(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        big = a_launch(1, launch=1, instance_type="t3.2xlarge")
        small = a_launch(2, launch=2)
        await node.launch(big, small)
        assert big.accepted() == (instance_id(1),)
        assert small.rejected() == "full"


async def test_an_accepted_instance_is_on_disk_when_the_answer_is_sent(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        on_disk_at_answer: set[str] = set()

        class Watched(Delivered):
            async def respond(self, data: bytes) -> None:
                on_disk_at_answer.update(await _on_disk(node))
                await super().respond(data)

        await node.launch(Watched(launch_request(1), launch_headers()))
        assert on_disk_at_answer == {instance_id(1)}


async def test_the_answer_does_not_wait_for_the_boot(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        request = a_launch(1)
        await node.launch(request)
        assert request.accepted() == (instance_id(1),)
        assert node.state_of(1) == "pending"
        driver.may_boot.set()
        await node.guests.idle()
        assert node.state_of(1) == "running"


@pytest.mark.parametrize("late_by_ms", [0, 1, 3_600_000])
async def test_an_expired_request_launches_nothing_and_says_so(
    tmp_path: Path, late_by_ms: int
) -> None:
    async with unit_node(tmp_path) as node:
        request = a_launch(1, expires_at_ms=NOW_MS - late_by_ms)
        await node.launch(request)
        reply = request.launch_reply()
        assert isinstance(reply, messages.Rejected)
        assert reply.reason == "node_fault"
        assert f"expired {late_by_ms} ms ago" in reply.message
        assert node.ledger.free == EIGHT_VCPU
        assert await _on_disk(node) == set()


async def test_an_expired_request_still_says_that_a_token_is_gone(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        before = node.changes
        await node.launch(a_launch(1, expires_at_ms=NOW_MS))
        assert node.changes > before


async def test_a_request_that_nobody_waits_for_launches_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, reply=""))
        assert node.ledger.free == EIGHT_VCPU


# --- the same request again ----------------------------------------------------------------


async def test_a_repeated_request_gets_the_same_answer_and_one_instance(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        first, again = a_launch(1, 2), a_launch(1, 2)
        await node.launch(first)
        await node.launch(again)
        assert again.answers == first.answers
        assert len(node.ledger) == 2


async def test_a_repeat_in_the_same_batch_gets_the_same_answer(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        first, again = a_launch(1), a_launch(1)
        await node.launch(first, again)
        assert again.answers == first.answers
        assert len(node.ledger) == 1


async def test_an_id_named_twice_in_one_request_is_placed_once(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        request = a_launch(1, 1, 2)
        await node.launch(request)
        assert request.accepted() == (instance_id(1), instance_id(2))


async def test_a_repeat_finds_its_instances_on_a_full_node(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, 2, 3, 4))
        # The order differs, so that a full node is met before what it holds.
        again = a_launch(5, 4, 3, 2, 1)
        await node.launch(again)
        assert set(again.accepted()) == {instance_id(number) for number in range(1, 5)}


async def test_a_newer_attempt_takes_the_instance_over(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        again = a_launch(1, attempt=2)
        await node.launch(again)
        assert again.accepted() == (instance_id(1),)
        (entry,) = await node.journal.entries()
        assert entry.guest.attempt == 2


async def test_a_boot_that_ends_later_keeps_the_newer_attempt(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.launch(a_launch(1, attempt=2))
        driver.may_boot.set()
        await node.guests.idle()
        (entry,) = await node.journal.entries()
        assert (node.state_of(1), entry.guest.attempt) == ("running", 2)


async def test_a_newer_attempt_in_the_same_batch_counts(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1), a_launch(1, attempt=3))
        await node.guests.idle()
        (entry,) = await node.journal.entries()
        assert (node.state_of(1), entry.guest.attempt) == ("running", 3)


async def test_an_older_attempt_is_refused(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, attempt=2))
        late = a_launch(1, attempt=1)
        await node.launch(late)
        assert late.rejected() == "node_fault"


async def test_an_instance_of_another_launch_is_never_handed_out(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1, launch=1))
        other = a_launch(1, launch=2)
        await node.launch(other)
        assert other.rejected() == "node_fault"


async def test_a_terminated_instance_is_never_launched_again(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.owner_actions.terminate([instance_id(1)])
        await node.guests.idle()
        again = a_launch(1)
        await node.launch(again)
        assert again.rejected() == "node_fault"
        assert node.ledger.free == EIGHT_VCPU


# --- what can't be used --------------------------------------------------------------------

_GOOD = launch_headers()


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b"", _GOOD),
        (b"null", _GOOD),
        (b"{}", _GOOD),
        (b"[" * 100_000, _GOOD),
        (b'{"v":1,"x":' + b"[" * 100_000, _GOOD),
        (b'{"v":2}', _GOOD),
        (launch_request(1).replace(b"i-0000", b"../../"), _GOOD),
        (launch_request(1).replace(b'launch_index":0', b'launch_index":' + b"9" * 40), _GOOD),
        (launch_request(), _GOOD),
        (launch_request(1), None),
        (launch_request(1), {}),
        (launch_request(1), _GOOD | {"Fleetcast-Attempt": "-1"}),
        (launch_request(1), _GOOD | {"Fleetcast-Attempt": "0"}),
        (launch_request(1), _GOOD | {"Fleetcast-Attempt": "9" * 5000}),
        (launch_request(1), _GOOD | {"Fleetcast-Attempt": "one"}),
        (launch_request(1), _GOOD | {"Fleetcast-Launch-Id": "../../etc"}),
        (launch_request(1), _GOOD | {"Fleetcast-Launch-Id": _GOOD["Fleetcast-Launch-Id"] + "\n"}),
        (launch_request(1), _GOOD | {"Fleetcast-Expires-At": "nan"}),
        (launch_request(1, instance_type="m5.large"), _GOOD),
    ],
)
async def test_a_request_that_cannot_be_used_is_refused_and_the_next_one_is_served(
    tmp_path: Path, data: bytes, headers: dict[str, str] | None
) -> None:
    async with unit_node(tmp_path) as node:
        bad, good = Delivered(data, headers), a_launch(7, launch=7)
        await node.launch(bad, good)
        assert bad.rejected() == "node_fault"
        assert good.accepted() == (instance_id(7),)
        assert await _on_disk(node) == {instance_id(7)}


async def test_an_answer_that_cannot_be_sent_costs_nobody_else_anything(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        lost, other = _Unanswerable(launch_request(1), launch_headers(1)), a_launch(2, launch=2)
        await node.launch(lost, other)
        await node.guests.idle()
        assert other.accepted() == (instance_id(2),)
        # It was promised, so it runs: the requester finds it by its launch id.
        assert node.state_of(1) == "running"


async def test_a_burst_larger_than_a_batch_is_answered_in_full(tmp_path: Path) -> None:
    total = Resources(vcpu=2 * (MAX_BATCH + 50), memory_mib=4_096_000)
    async with unit_node(tmp_path, total=total) as node:
        requests = [a_launch(number, launch=number) for number in range(1, MAX_BATCH + 61)]
        await node.launch(*requests)
        replies = [type(one.launch_reply()) for one in requests]
        assert replies.count(messages.Accepted) == MAX_BATCH + 50
        assert replies.count(messages.Rejected) == 10


# --- a journal that can't be written -------------------------------------------------------


async def test_without_its_journal_a_node_promises_nothing_and_closes(tmp_path: Path) -> None:
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        request = a_launch(1)
        await node.launch(request)
        assert request.rejected() == "node_fault"
        assert node.ledger.free == EIGHT_VCPU
        assert node.ledger.closed is not None
        assert node.state_of(1) is None


async def test_a_repeat_in_a_batch_that_was_not_written_is_not_accepted_either(
    tmp_path: Path,
) -> None:
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        first, again = a_launch(1), a_launch(1)
        await node.launch(first, again)
        # The node is closed by the time that the repeat is decided.
        assert [first.rejected(), again.rejected()] == ["node_fault", "full"]


async def test_an_attempt_that_was_not_written_is_not_taken_over(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        newer, new = a_launch(1, attempt=2), a_launch(2, launch=2)
        await node.launch(newer, new)
        assert [newer.rejected(), new.rejected()] == ["node_fault", "node_fault"]
        entry = node.instances.get(instance_id(1))
        assert entry is not None
        assert entry.guest.attempt == 1
        assert node.state_of(2) is None


# --- while the journal writes --------------------------------------------------------------


async def test_what_comes_while_the_journal_writes_is_decided_at_once_and_answered_afterwards(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        first, second = a_launch(1), a_launch(2, launch=2)
        node.desk.deliver(first)
        await a_few_turns()
        node.desk.deliver(second)
        await a_few_turns()
        assert len(node.ledger) == 2
        assert not node.desk.in_hand()
        assert not first.answers
        assert not second.answers
        disk.let_go()
        await node.desk.settled()
        assert [first.accepted(), second.accepted()] == [(instance_id(1),), (instance_id(2),)]


async def test_a_repeat_waits_until_the_first_is_written(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        first, again = a_launch(1), a_launch(1)
        node.desk.deliver(first)
        await a_few_turns()
        node.desk.deliver(again)
        await a_few_turns()
        assert not again.answers
        assert sum(node.desk.in_hand().values()) == 1
        disk.let_go()
        await node.desk.settled()
        assert again.answers == first.answers
        assert len(node.ledger) == 1


async def test_a_repeat_that_waits_is_not_looked_at_again_and_again(tmp_path: Path) -> None:
    looks: list[bytes] = []

    class Watched(Delivered):
        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            if name == "data":
                looks.append(value)
            return value

    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        node.desk.deliver(a_launch(1))
        await a_few_turns()
        node.desk.deliver(Watched(launch_request(1), launch_headers()))
        for _ in range(20):
            await a_few_turns()
        assert len(looks) == 1
        disk.let_go()
        await node.desk.settled()
        assert len(looks) == 2


async def test_a_repeat_of_what_is_then_not_written_is_not_accepted(tmp_path: Path) -> None:
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        first, again, newer = a_launch(1), a_launch(1), a_launch(1, attempt=2)
        node.desk.deliver(first)
        await a_few_turns()
        node.desk.deliver(again)
        node.desk.deliver(newer)
        await a_few_turns()
        disk.let_go()
        await node.desk.settled()
        assert first.rejected() == "node_fault"
        # The node is closed by then.
        assert [again.rejected(), newer.rejected()] == ["full", "full"]
        assert node.state_of(1) is None
        assert node.ledger.free == EIGHT_VCPU


async def test_what_was_written_is_accepted_though_what_came_before_it_was_not(
    tmp_path: Path,
) -> None:
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        lost, kept = a_launch(1), a_launch(2, launch=2)
        node.desk.deliver(lost)
        await a_few_turns()
        node.desk.deliver(kept)
        await a_few_turns()
        disk.let_go()
        await node.desk.settled()
        assert lost.rejected() == "node_fault"
        assert kept.accepted() == (instance_id(2),)
        assert await _on_disk(node) == {instance_id(2)}


async def test_a_repeat_that_expires_while_it_waits_launches_nothing(tmp_path: Path) -> None:
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        disk = HeldUpJournal(node.journal)
        first, again = a_launch(1), a_launch(1, attempt=2)
        node.desk.deliver(first)
        await a_few_turns()
        node.desk.deliver(again)
        await a_few_turns()
        node.now_s += 2
        disk.let_go()
        await node.desk.settled()
        reply = again.launch_reply()
        assert isinstance(reply, messages.Rejected)
        assert "expired" in reply.message


# --- what is kept in confidence ------------------------------------------------------------


async def test_no_log_line_holds_user_data_or_tags(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    make_journal_refuse(tmp_path, 9)
    async with unit_node(tmp_path) as node:
        broken = Delivered(launch_request(3).replace(b"t3.medium", b"1" * 3), launch_headers(3))
        lost = _Unanswerable(launch_request(4), launch_headers(4))
        await node.launch(a_launch(1), broken, lost, a_launch(5, launch=5, expires_at_ms=1))
        await node.launch(a_launch(9, launch=9))
        await node.owner_actions.terminate([instance_id(1)])
        await node.guests.idle()
    written = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert instance_id(1) in written
    assert "c2VjcmV0" not in written
    assert "private" not in written


async def test_a_hostile_request_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with unit_node(tmp_path) as node:
        hostile = Delivered(launch_request(1, instance_type="x" * 500_000), launch_headers(1))
        await node.launch(hostile)
        assert hostile.rejected() == "node_fault"
    (record,) = caplog.records
    assert record.message == "launch request not understood"
    assert len(str(record.__dict__)) < 5_000


async def test_the_desk_ends_only_when_it_is_told_to(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        for number in range(1, 4):
            await node.launch(Delivered(b"\xff", {"\xff": "\xff"}), a_launch(number, launch=number))
        await asyncio.wait_for(node.desk.settled(), timeout=5)
        assert len(node.ledger) == 3
