"""Guests of a real agent process that end by themselves, and agents that die or leave meanwhile."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Final

import pytest

from fleetcast import messages
from fleetcast.agent import daemon
from fleetcast.agent.daemon import Agent
from fleetcast.agent.drivers.simulated import SimulatedDriver, running_guests
from fleetcast.agent.settings import read_settings
from fleetcast.subjects import NodeAction
from tests.agent_parts import instance_id
from tests.agent_process import AgentProcess, Requester
from tests.eventually import eventually
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fleetcast.agent.drivers import Guest

I1: Final = instance_id(1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def requester(server: NatsProcess) -> AsyncIterator[Requester]:
    async with await Requester.connect(server.url) as connected:
        yield connected


def _end(tmp_path: Path, what: str) -> None:
    (tmp_path / "state" / "guests" / "ends").write_text(f"{I1} {what}\n")


def _runs(tmp_path: Path) -> bool:
    return I1 in running_guests(tmp_path / "state" / "guests")


async def _crashes(agent: AgentProcess, number: int) -> None:
    """Wait until the agent has counted that many."""

    async def counted() -> int:
        return int((await agent.says("instance crashed"))["crashes"])

    await eventually(counted, lambda found: found == number)


async def _report(requester: Requester) -> messages.InstanceReport:
    asked = messages.InstancesRequest(instance_ids=(I1,))
    answer = await requester.ask_node(NodeAction.DESCRIBE, asked)
    (report,) = messages.decode(answer, messages.InstancesReply).instances
    return report


async def test_a_guest_that_powers_itself_off_stops_its_instance(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    async with AgentProcess(tmp_path, server.url) as agent:
        await requester.accepted(1)
        await agent.says("instances running")
        _end(tmp_path, "powered-off")
        stopped = await eventually(lambda: _report(requester), lambda one: one.state == "stopped")
        assert stopped.state_reason_code == "Client.InstanceInitiatedShutdown"
        line = await agent.says("instance powered itself off")
        assert (line["instance"], line["launch"]) == (I1, stopped.launch_id)


async def test_kill_9_between_a_crash_and_its_restart_loses_neither_the_guest_nor_the_count(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    agent = AgentProcess(tmp_path, server.url)
    async with agent:
        await requester.accepted(1)
        await agent.says("instances running")
        _end(tmp_path, "crashed")
        await agent.says("instance restarted")
        _end(tmp_path, "crashed")
        await _crashes(agent, 2)
        assert not _runs(tmp_path)
    # That was a kill -9, some seconds before the restart was due.
    async with agent:
        await requester.reaches_the_node_again()
        await agent.says("instance restarted")
        assert _runs(tmp_path)
        assert (await _report(requester)).state == "running"
        assert (await requester.capacity()).free.vcpu == 6
        _end(tmp_path, "crashed")
        await _crashes(agent, 3)


async def test_what_takes_no_end_keeps_no_agent_from_leaving(
    tmp_path: Path, server: NatsProcess, requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A boot that hangs is not waited for: the next agent goes on with it."""
    end_of_time = asyncio.get_running_loop().create_future()

    async def never_up(_: SimulatedDriver, guest: Guest) -> None:
        del guest
        await end_of_time

    monkeypatch.setattr(daemon, "_LEAVE_WITHIN_S", 0.2)
    process = AgentProcess(tmp_path, server.url)
    with monkeypatch.context() as hanging:
        hanging.setattr(SimulatedDriver, "boot", never_up)
        stop = asyncio.Event()
        serving = asyncio.create_task(Agent(read_settings(process.config)).run(stop))
        await requester.reaches_the_node_again()
        await requester.accepted(1)
        stop.set()
        await asyncio.wait_for(serving, 20)
        end_of_time.cancel()
    async with process:
        await requester.reaches_the_node_again()
        await eventually(lambda: _report(requester), lambda one: one.state == "running")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
        assert _runs(tmp_path)
