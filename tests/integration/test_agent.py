"""A real agent process on a real nats-server: it serves, fills, comes back and leaves in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import nats.errors
import pytest

from fleetcast import messages
from fleetcast.subjects import NodeAction, RegionAction
from tests.agent_parts import attempt_request, instance_id
from tests.agent_process import (
    LARGEST,
    MEDIUM,
    MEDIUM_IN_ZONE,
    ZONE,
    AgentProcess,
    Requester,
    launch_subscriptions,
    promised_room,
)
from tests.eventually import eventually
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def requester(server: NatsProcess) -> AsyncIterator[Requester]:
    async with await Requester.connect(server.url) as connected:
        yield connected


async def test_a_ready_agent_is_armed_for_every_type_and_its_zone(
    tmp_path: Path, server: NatsProcess
) -> None:
    async with AgentProcess(tmp_path, server.url):
        promised = await promised_room(server)
        assert len(promised) == 14  # t3 has seven sizes
        assert promised[MEDIUM] == promised[MEDIUM_IN_ZONE] == 4
        assert promised[LARGEST] == 1


async def test_a_full_node_leaves_all_its_subjects_and_a_termination_brings_it_back(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert await requester.accepted(1, instance_type="t3.2xlarge") == (instance_id(1),)
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)
        assert await requester.nobody_has_room("t3.nano")
        terminated = await requester.instances(NodeAction.TERMINATE, 1)
        assert terminated == {instance_id(1): "shutting-down"}
        await eventually(lambda: promised_room(server), lambda held: held.get(LARGEST) == 1)
        assert await requester.accepted(2) == (instance_id(2),)
        assert await requester.inventory() == {
            instance_id(1): "terminated",
            instance_id(2): "running",
        }


async def test_both_subjects_of_a_type_draw_on_the_same_room(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        for number in (1, 3):
            assert await requester.accepted(number)
            assert await requester.accepted(number + 1, zone=ZONE)
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)
        assert (await requester.capacity()).free.vcpu == 0


async def test_a_crowd_gets_exactly_the_slots_there_are(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(
        tmp_path, server.url, **{"capacity.vcpu": 80, "capacity.memory_mib": 400_000}
    ):

        async def one_launch(number: int) -> bool:
            with contextlib.suppress(nats.errors.NoRespondersError):
                while True:
                    reply = await requester.launch(number)
                    if isinstance(reply, messages.Accepted):
                        return True
                    assert reply.reason == "full"
            return False

        outcomes = await asyncio.gather(*(one_launch(number) for number in range(1, 121)))
        assert outcomes.count(True) == 40
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)


async def test_an_expired_request_launches_nothing_and_its_token_is_renewed(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        for number in range(1, 5):
            reply = await requester.launch(number, lasts_ms=-1)
            assert isinstance(reply, messages.Rejected)
            assert reply.reason == "node_fault"
        await eventually(lambda: promised_room(server), lambda held: held.get(MEDIUM) == 4)
        assert await requester.inventory() == {}


async def test_a_repeated_launch_gets_the_same_answer_and_one_instance(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        answers = await asyncio.gather(*(requester.accepted(1, 2) for _ in range(3)))
        assert set(answers) == {(instance_id(1), instance_id(2))}
        assert (await requester.capacity()).free.vcpu == 4


# --- leaving -------------------------------------------------------------------------------


async def test_sigterm_answers_what_is_in_hand_and_exits_with_0(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(
        tmp_path, server.url, **{"capacity.vcpu": 2_000, "capacity.memory_mib": 8_000_000}
    ) as agent:
        asking = [asyncio.create_task(requester.launch(number)) for number in range(1, 501)]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        agent.signal(signal.SIGTERM)
        answers = await asyncio.gather(*asking, return_exceptions=True)
        accepted = {
            one
            for reply in answers
            if isinstance(reply, messages.Accepted)
            for one in reply.instance_ids
        }
        # Everything else was said no to, none left without an answer.
        assert accepted
        assert all(
            isinstance(reply, messages.Accepted | nats.errors.NoRespondersError)
            or (isinstance(reply, messages.Rejected) and reply.reason == "full")
            for reply in answers
        )
        assert await agent.exit_code() == 0
    async with AgentProcess(tmp_path, server.url, **{"capacity.vcpu": 2_000}):
        assert set(await requester.inventory()) == accepted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_agent_leaves_at_once(
    tmp_path: Path, server: NatsProcess, number: signal.Signals
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        agent.signal(number)
        assert await agent.exit_code() == 0
        assert [one["message"] for one in agent.logs] == ["agent ready", "leaving"]


async def test_sigterm_is_heeded_while_the_server_is_away(
    tmp_path: Path, server: NatsProcess
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        await server.kill()
        await agent.says("disconnected from NATS, reconnecting")
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code() == 0


async def test_sigterm_is_heeded_while_the_server_hangs(
    tmp_path: Path, server: NatsProcess
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        server.hang()
        agent.signal(signal.SIGTERM)
        assert await agent.exit_code() == 0
        assert agent.logs[-1]["message"] == "left without the last answers"


# --- crashes -------------------------------------------------------------------------------


async def test_what_was_accepted_survives_kill_9(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert await requester.accepted(1, 2, 3)
    async with AgentProcess(tmp_path, server.url):
        held = dict.fromkeys(map(instance_id, (1, 2, 3)), "running")
        await eventually(requester.inventory, lambda states: states == held)
        assert (await promised_room(server))[MEDIUM] == 1
        assert await requester.accepted(1, 2, 3) == tuple(held)
        assert await requester.accepted(4) == (instance_id(4),)


async def test_kill_9_in_the_middle_of_a_burst_loses_no_accepted_instance(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    room = {"capacity.vcpu": 2_000, "capacity.memory_mib": 8_000_000}
    accepted: set[str] = set()

    async def one_launch(number: int) -> None:
        with contextlib.suppress(nats.errors.Error):
            accepted.update(await requester.accepted(number, timeout_s=0.5))

    async with AgentProcess(tmp_path, server.url, **room) as agent:
        asking = asyncio.gather(*(one_launch(number) for number in range(1, 401)))
        await eventually(lambda: asyncio.sleep(0, len(accepted)), lambda count: count >= 100)
        await agent.kill()
        await asking
    async with AgentProcess(tmp_path, server.url, **room):
        inventory = await requester.inventory()
        assert accepted <= set(inventory)
        assert (await requester.capacity()).free.vcpu == 2_000 - 2 * len(inventory)


async def test_a_guest_that_runs_is_adopted_though_its_node_has_shrunk(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert await requester.accepted(1, 2, 3, 4)
    async with AgentProcess(tmp_path, server.url, **{"capacity.vcpu": 4}):
        assert set((await requester.inventory()).values()) <= {"pending", "running"}
        assert (await requester.capacity()).free.vcpu == -4
        assert not await launch_subscriptions(server)


async def test_a_hold_survives_kill_9_and_lapses_all_the_same(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert await requester.accepted(1, hold_ms=60_000)
        assert await requester.accepted(2, hold_ms=1_000)
    async with AgentProcess(tmp_path, server.url):
        states = {instance_id(1): "pending", instance_id(2): "terminated"}
        await eventually(requester.inventory, lambda held: held == states)
        await eventually(lambda: promised_room(server), lambda held: held.get(MEDIUM) == 3)
        assert await requester.order(NodeAction.COMMIT, attempt_request(2, launch=2)) == {}
        committed = await requester.order(NodeAction.COMMIT, attempt_request(1))
        assert committed == {instance_id(1): "pending"}
    async with AgentProcess(tmp_path, server.url):
        await eventually(requester.inventory, lambda held: held.get(instance_id(1)) == "running")


async def test_a_cancellation_survives_kill_9(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert await requester.accepted(1)
        cancelled = await requester.order(
            RegionAction.CANCEL_LAUNCH, attempt_request(1, 2, launch=1)
        )
        assert cancelled == {instance_id(1): "shutting-down"}
    async with AgentProcess(tmp_path, server.url):
        for number in (1, 2):
            late = await requester.launch(number, launch=1)
            assert isinstance(late, messages.Rejected)
            assert late.reason == "node_fault"
        await eventually(requester.inventory, lambda held: held == {instance_id(1): "terminated"})
        assert await requester.accepted(1, 2, launch=1, attempt=2)


async def test_a_stopped_instance_makes_room_and_stays_stopped_after_kill_9(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url):
        assert await requester.accepted(1, instance_type="t3.2xlarge")
        await eventually(requester.inventory, lambda held: held == {instance_id(1): "running"})
        await requester.instances(NodeAction.STOP, 1)
        await eventually(lambda: promised_room(server), lambda held: held.get(LARGEST) == 1)
    async with AgentProcess(tmp_path, server.url):
        assert await requester.inventory() == {instance_id(1): "stopped"}
        assert await requester.instances(NodeAction.START, 1) == {instance_id(1): "pending"}
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)


# --- the server goes away ------------------------------------------------------------------


async def test_after_a_server_restart_every_limit_is_right_again(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        assert await requester.accepted(1)
        await server.kill()
        await server.start()
        await agent.says("reconnected to NATS")
        # Two vCPU are in use: every size but 2xlarge.
        promised = await eventually(
            lambda: promised_room(server), lambda held: len(held) == 12 and min(held.values()) > 0
        )
        assert promised[MEDIUM] == promised[MEDIUM_IN_ZONE] == 3
        await requester.reaches_the_node_again()
        assert await requester.accepted(2, 3, 4)
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)


async def test_a_full_node_stays_away_after_a_server_restart(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        assert await requester.accepted(1, 2, 3, 4)
        await eventually(lambda: launch_subscriptions(server), lambda held: not held)
        await server.kill()
        await server.start()
        await agent.says("reconnected to NATS")
        await requester.reaches_the_node_again()
        assert (await requester.capacity()).armed == {}
        assert not await launch_subscriptions(server)


async def test_the_server_dying_in_a_storm_leaves_an_agent_that_serves(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        asking = [
            asyncio.create_task(requester.launch(number, timeout_s=1)) for number in range(1, 201)
        ]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        await server.kill()
        await server.start()
        await agent.says("reconnected to NATS")
        await asyncio.gather(*asking, return_exceptions=True)
        await requester.reaches_the_node_again()
        room = (await requester.capacity()).room.get("t3.medium", 0)
        await eventually(lambda: promised_room(server), lambda held: held.get(MEDIUM, 0) >= room)
        await requester.instances(NodeAction.TERMINATE, *range(1, 201))
        await eventually(lambda: promised_room(server), lambda held: held.get(MEDIUM) == 4)
        # Its request is handled by a subscription that both sides know.
        assert await requester.accepted(1001) == (instance_id(1001),)
