"""Cordon and drain as a node's operator uses them: the real command, agent and server."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from fleetcast.subjects import NodeAction
from tests.agent_parts import instance_id
from tests.agent_process import MEDIUM, AgentProcess, Requester, launch_subscriptions, promised_room
from tests.eventually import eventually
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_ROOT: Final = Path(__file__).parents[2]
I1, I2 = instance_id(1), instance_id(2)


class Ended(NamedTuple):
    """How a command has ended."""

    exit_code: int
    output: str


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def agent(tmp_path: Path, server: NatsProcess) -> AsyncIterator[AgentProcess]:
    async with AgentProcess(tmp_path, server.url) as running:
        yield running


@pytest.fixture
async def requester(server: NatsProcess, agent: AgentProcess) -> AsyncIterator[Requester]:
    del agent  # it is there before anybody asks
    async with await Requester.connect(server.url) as connected:
        yield connected


async def _begin(agent: AgentProcess, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-B", "-u", "-m", "fleetcast.agent", *words),
        *("--config", agent.config),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _ended(process: asyncio.subprocess.Process, shown: str = "") -> Ended:
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 20)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Ended(process.returncode, shown + output.decode())


async def _run(agent: AgentProcess, *words: str) -> Ended:
    return await _ended(await _begin(agent, *words))


async def _shows(process: asyncio.subprocess.Process, words: str) -> str:
    assert process.stdout
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    assert words in line.decode()
    return line.decode()


async def test_a_cordoned_node_leaves_its_subjects_until_it_is_uncordoned(
    server: NatsProcess, agent: AgentProcess, requester: Requester
) -> None:
    await requester.accepted(1)
    ended = await _run(agent, "cordon")
    assert ended == (
        0,
        "n1 is cordoned: it takes no launches. 1 instance uses it.\n",
    )
    await eventually(lambda: launch_subscriptions(server), lambda held: not held)
    assert await requester.nobody_has_room()
    assert (await requester.capacity()).closed == "cordoned"
    await agent.kill()
    async with agent:
        assert await requester.nobody_has_room()
        await requester.reaches_the_node_again()
        assert await requester.inventory() == {I1: "running"}
        assert await _run(agent, "uncordon") == (0, "n1 is not cordoned any more.\n")
        await eventually(lambda: promised_room(server), lambda held: held.get(MEDIUM) == 3)
        await requester.accepted(2)


async def test_a_drain_shows_what_is_left_and_ends_when_nothing_is(
    agent: AgentProcess, requester: Requester
) -> None:
    await requester.accepted(1, 2)
    draining = await _begin(agent, "drain")
    shown = await _shows(draining, f"n1 takes no launches; 2 left: {I1} running, {I2} running")
    await requester.instances(NodeAction.TERMINATE, 1)
    await requester.instances(NodeAction.STOP, 2)
    ended = await _ended(draining, shown)
    assert ended.exit_code == 0
    assert ended.output.endswith(
        "n1 is drained: nothing uses it, 1 instance on it is stopped. It stays cordoned.\n"
    )
    assert (await requester.capacity()).closed == "cordoned"


async def test_a_drain_that_stops_goes_on_though_its_agent_is_killed(
    agent: AgentProcess, requester: Requester
) -> None:
    await requester.accepted(1)
    await requester.accepted(2, hold_ms=3_000)  # it is left until it lapses
    draining = await _begin(agent, "drain", "--stop")
    shown = await _shows(draining, f"{I2} pending")
    await agent.kill()
    async with agent:
        ended = await _ended(draining, shown)
        assert ended.exit_code == 0
        await requester.reaches_the_node_again()
        assert await requester.inventory() == {I1: "stopped", I2: "terminated"}


async def test_a_drain_ends_at_its_deadline_and_says_what_is_left(
    agent: AgentProcess, requester: Requester
) -> None:
    await requester.accepted(1)
    ended = await _run(agent, "drain", "--timeout", "1s")
    assert ended.exit_code == 1
    assert ended.output.splitlines()[-1] == (
        f"not drained in time: 1 left: {I1} running. n1 stays cordoned and goes on draining;"
        " `fleetcast-agent uncordon` ends it"
    )
    assert (await requester.capacity()).closed == "draining"
    assert await requester.inventory() == {I1: "running"}


async def test_a_drain_that_is_interrupted_leaves_the_node_cordoned_and_says_so(
    agent: AgentProcess, requester: Requester
) -> None:
    await requester.accepted(1)
    draining = await _begin(agent, "drain")
    await _shows(draining, "1 left")
    draining.send_signal(signal.SIGINT)
    ended = await _ended(draining)
    assert ended.exit_code == 130
    assert ended.output.startswith("interrupted: 1 left")
    assert "n1 stays cordoned" in ended.output
    assert (await requester.capacity()).closed == "draining"


async def test_a_drain_that_somebody_ends_says_so(
    agent: AgentProcess, requester: Requester
) -> None:
    await requester.accepted(1)
    draining = await _begin(agent, "drain")
    await _shows(draining, "1 left")
    await _run(agent, "uncordon")
    ended = await _ended(draining)
    assert ended.exit_code == 1
    assert "somebody else has ended it" in ended.output


async def test_a_command_that_nobody_answers_says_why(
    server: NatsProcess, agent: AgentProcess
) -> None:
    await agent.kill()
    assert await _run(agent, "cordon") == (
        1,
        "Error: no agent answers for node n1 in us-east-1: is it running?\n",
    )
    await server.kill()
    ended = await _run(agent, "drain")
    assert ended.exit_code == 1
    assert f"can't connect to {server.url}" in ended.output


async def test_credentials_that_are_none_are_told_before_anybody_is_asked(tmp_path: Path) -> None:
    creds = tmp_path / "node.creds"
    creds.write_text("none\n", encoding="utf-8")
    nowhere = "nats://127.0.0.1:9"
    agent = AgentProcess(tmp_path, nowhere, **{"nats.credentials_file": str(creds)})
    ended = await _run(agent, "cordon")
    assert ended.exit_code == 1
    assert f"nats.credentials_file: {creds} holds no user JWT" in ended.output


@pytest.mark.parametrize("too_odd", ["soon", "30", "-1m"])
async def test_a_wrong_timeout_is_refused_with_what_would_be_right(
    tmp_path: Path, too_odd: str
) -> None:
    agent = AgentProcess(tmp_path, "nats://127.0.0.1:9")
    ended = await _run(agent, "drain", "--timeout", too_odd)
    assert ended.exit_code == 2
    assert f"'{too_odd}' is no duration; expected e.g. 90s, 30m" in ended.output
