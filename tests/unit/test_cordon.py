"""Cordon and drain on one node: what a closed node does and doesn't, also after a restart."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from fleetcast import messages
from fleetcast.agent.cordon import CORDONED, OPEN, CordonWish
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.subjects import NodeAction, RegionAction, node_subject, region_subject
from tests.agent_parts import (
    Delivered,
    HeldUpDriver,
    HeldUpJournal,
    UnitNode,
    a_few_turns,
    a_launch,
    attempt_request,
    instance_id,
    let_journal_write,
    make_journal_refuse,
    unit_node,
)
from tests.eventually import eventually

I1, I2 = instance_id(1), instance_id(2)
DRAINING = CordonWish(state="draining")
STOPPING_ALL = CordonWish(state="draining", stops=True)


async def _asked(
    node: UnitNode, action: NodeAction, request: messages.Message | None = None
) -> messages.CordonReply:
    asked = Delivered(
        messages.encode(request or messages.CordonRequest()),
        subject=node_subject("r", "n1", action),
    )
    await node.actions.answer_node(asked)
    (answer,) = asked.answers
    return messages.decode(answer, messages.CordonReply)


async def _closed(node: UnitNode) -> str | None:
    asked = Delivered(
        messages.encode(messages.RegionRequest()),
        subject=region_subject("r", RegionAction.DESCRIBE_CAPACITY),
    )
    await node.actions.answer_region(asked)
    (answer,) = asked.answers
    reply = messages.decode(answer, messages.CapacityReply)
    assert bool(reply.room) == (reply.closed is None)
    return reply.closed


def _break_the_disk(folder: Path) -> None:
    """Make a file there impossible to write."""
    (folder / "cordon.new").mkdir()


# --- cordon --------------------------------------------------------------------------------


async def test_a_cordoned_node_has_room_for_nothing_and_says_why(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        changes = node.changes
        reply = await _asked(node, NodeAction.CORDON)
        assert (reply.state, reply.closed, reply.problem) == ("cordoned", "cordoned", "")
        assert await _closed(node) == "cordoned"
        assert node.changes > changes  # the tokens follow
        request = a_launch(1)
        await node.launch(request)
        assert request.rejected() == "full"  # so that it is asked elsewhere, at once


async def test_it_goes_on_with_what_it_has(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2, hold_ms=15_000))
        await node.guests.idle()
        reply = await _asked(node, NodeAction.CORDON)
        assert {one.instance_id for one in reply.instances} == {I1, I2}
        repeated = a_launch(1)
        await node.launch(repeated)
        assert repeated.accepted() == (I1,)
        await node.holds.commit(attempt_request(2, launch=2))
        await node.guests.idle()
        assert node.state_of(2) == "running"
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        assert node.state_of(1) == "terminated"


async def test_a_stopped_instance_has_no_room_to_start_until_the_node_is_uncordoned(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.owner_actions.stop([I1])
        await node.guests.idle()
        reply = await _asked(node, NodeAction.CORDON)
        assert (reply.instances, reply.stopped_n) == ((), 1)
        assert (await node.owner_actions.start([I1])).refused == {I1: "full"}
        await _asked(node, NodeAction.UNCORDON)
        assert (await node.owner_actions.start([I1])).refused == {}


@pytest.mark.parametrize("wish", [CORDONED, DRAINING, STOPPING_ALL])
async def test_it_stays_closed_over_a_restart(tmp_path: Path, wish: CordonWish) -> None:
    async with unit_node(tmp_path) as node:
        await node.cordon.set(wish)
    async with unit_node(tmp_path) as node:
        assert node.cordon.wish == wish
        assert await _closed(node) == wish.state
        await _asked(node, NodeAction.UNCORDON)
        assert await _closed(node) is None
    async with unit_node(tmp_path) as node:
        assert await _closed(node) is None
        assert node.cordon.wish == OPEN


async def test_it_is_on_disk_when_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        fsync(file)
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    async with unit_node(tmp_path) as node:
        monkeypatch.setattr(os, "fsync", noted)
        await _asked(node, NodeAction.CORDON)
        # The file, and then the folder that names it.
        assert synced == [str(tmp_path / "cordon.new"), str(tmp_path)]


async def test_it_is_answered_when_what_came_before_is_decided(tmp_path: Path) -> None:
    """So that nobody who was told that it is closed sees it accept a launch."""
    async with unit_node(tmp_path) as node:
        journal = HeldUpJournal(node.journal)
        before, after = a_launch(1), a_launch(2, launch=2)
        node.desk.deliver(before)
        await a_few_turns()
        cordoning = asyncio.create_task(node.cordon.set(CORDONED))
        await a_few_turns()
        node.desk.deliver(after)
        assert not cordoning.done()
        journal.let_go()
        await cordoning
        assert before.accepted() == (I1,)
        assert after.rejected() == "full"


async def test_what_cannot_be_written_down_holds_until_a_restart_and_says_so(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        _break_the_disk(tmp_path)
        reply = await _asked(node, NodeAction.CORDON)
        assert "cordon.json can't be written" in reply.problem
        assert await _closed(node) == "cordoned"
    async with unit_node(tmp_path) as node:
        assert await _closed(node) is None


async def test_a_wish_that_nobody_can_read_keeps_the_node_closed(tmp_path: Path) -> None:
    (tmp_path / "cordon.json").write_text('{"state":"half')
    async with unit_node(tmp_path) as node:
        closed = await _closed(node)
        assert closed
        assert "cordon.json can't be read" in closed
        assert "uncordon" in closed
        await _asked(node, NodeAction.UNCORDON)
        assert await _closed(node) is None


async def test_an_uncordoned_node_may_be_closed_for_another_reason(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await _asked(node, NodeAction.CORDON)
        node.ledger.close("set aside", "three boots failed")
        reply = await _asked(node, NodeAction.UNCORDON)
        assert (reply.state, reply.closed) == ("open", "set aside: three boots failed")


# --- drain ---------------------------------------------------------------------------------


async def test_a_drain_waits_for_instances_to_end_and_leaves_the_node_cordoned(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        reply = await _asked(node, NodeAction.DRAIN, messages.DrainRequest())
        assert (reply.state, [one.state for one in reply.instances]) == ("draining", ["running"])
        await node.drain.step()
        assert node.state_of(1) == "running"
        await node.owner_actions.terminate([I1])
        await node.guests.idle()
        await node.drain.step()
        look = messages.DrainRequest(only_look=True)
        reply = await _asked(node, NodeAction.DRAIN, look)
        assert (reply.state, reply.closed, reply.instances) == ("cordoned", "cordoned", ())


async def test_a_drain_that_stops_stops_what_runs_and_what_comes_to_run(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1), a_launch(2, launch=2, hold_ms=15_000))
        await _asked(node, NodeAction.DRAIN, messages.DrainRequest(stop=True))
        await node.drain.step()
        assert node.state_of(1) == "pending"
        driver.may_boot.set()
        await node.guests.idle()
        await node.holds.commit(attempt_request(2, launch=2))
        await node.guests.idle()
        await node.drain.step()
        await node.guests.idle()
        assert (node.state_of(1), node.state_of(2)) == ("stopped", "stopped")
        entry = node.instances.get(I1)
        assert entry
        assert entry.state_reason_code == "Server.ScheduledStop"
        await node.drain.step()
        assert node.cordon.wish == CORDONED


async def test_it_goes_on_after_a_restart_of_the_agent(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await _asked(node, NodeAction.DRAIN, messages.DrainRequest(stop=True))
    async with unit_node(tmp_path) as node:
        await node.drain.step()
        await node.guests.idle()
        assert node.state_of(1) == "stopped"


async def test_whoever_uncordons_ends_it_though_it_is_just_done(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.cordon.set(DRAINING)
        uncordoning = asyncio.create_task(node.cordon.set(OPEN))
        await asyncio.sleep(0)  # it has begun
        await node.drain.step()
        await uncordoning
        assert node.cordon.wish == OPEN
        assert await _closed(node) is None


async def test_looking_at_a_node_that_does_not_drain_changes_nothing(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        reply = await _asked(node, NodeAction.DRAIN, messages.DrainRequest(only_look=True))
        assert (reply.state, reply.closed) == ("open", None)
        assert not (tmp_path / "cordon.json").exists()


async def test_a_stop_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    async def state() -> str | None:
        return node.state_of(1)

    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
    make_journal_refuse(tmp_path, 1)
    async with unit_node(tmp_path) as node:
        await node.guests.idle()
        await node.cordon.set(STOPPING_ALL)
        with pytest.raises(JournalUnwritable):
            await node.drain.step()
        draining = asyncio.create_task(node.drain.keep_draining())
        await a_few_turns()
        assert await eventually(state, "running".__eq__)  # that one has failed, too
        let_journal_write(node.journal)
        assert await eventually(state, "stopped".__eq__)
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
