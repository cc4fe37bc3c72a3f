"""Real guests of real agents: two on one machine, killed, and their guests too."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import signal
from typing import TYPE_CHECKING, Final

import nats.errors
import pytest

from fleetcast import messages
from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder
from fleetcast.agent.drivers.qemu.monitor import Monitor
from fleetcast.agent.drivers.qemu.qemu_process import QemuProcess
from fleetcast.local.qemu_guests import guest_pids
from fleetcast.subjects import NodeAction
from tests.agent_parts import a_guest, instance_id
from tests.agent_process import AgentProcess, Requester
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.qemu_node import UP_WITHIN_S, write_catalogue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.host_packages

_SMALL: Final = "t3.nano"
_IMAGE_ID: Final = a_guest(1).image_id


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def requester(server: NatsProcess) -> AsyncIterator[Requester]:
    async with await Requester.connect(server.url) as connected:
        yield connected


class _Node:
    """An agent with real guests. zone: of its own, so that a launch can be meant for it."""

    def __init__(
        self, folder: Path, server: NatsProcess, *, node: str, zone: str, **changed: object
    ) -> None:
        folder.mkdir()
        self.folder = folder
        catalogue = write_catalogue(folder / "images.toml", image_id=_IMAGE_ID)
        self._guests = folder / "state" / "guests"
        self.agent = AgentProcess(
            folder,
            server.url,
            node=node,
            zone=zone,
            driver="qemu",
            **{
                "qemu.accelerator": "tcg",
                "images.catalogue": str(catalogue),
                "capacity.memory_mib": 4096,
                **changed,
            },
        )

    def pid(self, number: int) -> int | None:
        """Return the pid of a guest's QEMU; None if there is none."""
        found = QemuProcess.of_pid_file(GuestFolder(self._guests / instance_id(number)).pid)
        if found is None:
            return None
        found.close()
        return found.pid

    async def shut_down_from_within(self, number: int) -> None:
        """Press a guest's power button when no agent is there, and wait until it is down."""
        folder = GuestFolder(self._guests / instance_id(number))
        monitor = await Monitor.connect(folder.monitor, changed=lambda: None)
        await monitor.press_power_button()
        await eventually(monitor.run_state, lambda state: state == "shutdown", within_s=UP_WITHIN_S)
        await monitor.close()

    def end_guests(self) -> None:
        for folder in self._guests.glob("i-*"):
            found = QemuProcess.of_pid_file(GuestFolder(folder).pid)
            if found is not None:
                found.kill()
                found.close()


@pytest.fixture
async def nodes(tmp_path: Path, server: NatsProcess) -> AsyncIterator[list[_Node]]:
    names = [("n1", "us-east-1a"), ("n2", "us-east-1b")]
    nodes = [_Node(tmp_path / node, server, node=node, zone=zone) for node, zone in names]
    yield nodes
    for node in nodes:
        node.end_guests()


async def _console_shows(requester: Requester, text: str, *, times: int = 1) -> None:
    async def console() -> str:
        asked = messages.InstancesRequest(instance_ids=(instance_id(1),))
        answer = await requester.ask_node(NodeAction.GET_CONSOLE_OUTPUT, asked)
        reply = messages.decode(answer, messages.ConsoleReply)
        return base64.b64decode(reply.output_base64 or "").decode(errors="replace")

    await eventually(console, lambda seen: seen.count(text) >= times, within_s=UP_WITHIN_S)


async def test_two_agents_of_one_machine_keep_their_guests_through_kill_9_each_its_own(
    nodes: list[_Node], requester: Requester
) -> None:
    first, second = nodes
    async with first.agent, second.agent:
        await requester.accepted(1, instance_type=_SMALL, zone="us-east-1a")
        await requester.accepted(2, instance_type=_SMALL, zone="us-east-1b")
        await first.agent.says("instances running")
        await second.agent.says("instances running")
        pids = (first.pid(1), second.pid(2))
        assert None not in pids
    # Both were killed.
    async with first.agent, second.agent:
        assert (first.pid(1), second.pid(2)) == pids
        assert (first.pid(2), second.pid(1)) == (None, None)
        assert await requester.instances(NodeAction.DESCRIBE, 1) == {instance_id(1): "running"}
        # A guest that dies is restarted on its disk, and what it wrote before is kept.
        await _console_shows(requester, "guest: boot 1")
        os.kill(pids[0] or 0, signal.SIGKILL)
        await first.agent.says("instance restarted")
        await _console_shows(requester, "guest: boot 2")
        assert second.pid(2) == pids[1]
        await requester.instances(NodeAction.TERMINATE, 1)
        await first.agent.says("instance terminated")
        assert first.pid(1) is None
    # One that shuts itself down while no agent is there is not booted again by the next.
    await second.shut_down_from_within(2)
    async with second.agent:
        await second.agent.says("instance powered itself off")
        await second.agent.says("instance stopped")
        assert second.pid(2) is None


async def test_a_guest_that_dies_while_no_agent_is_there_is_booted_by_the_next(
    nodes: list[_Node], requester: Requester
) -> None:
    node = nodes[0]
    async with node.agent:
        await requester.accepted(1, instance_type=_SMALL)
        await node.agent.says("instances running")
        before = node.pid(1)
    node.end_guests()
    async with node.agent:
        await node.agent.says("instances running")
        assert node.pid(1) not in {None, before}
        assert await requester.instances(NodeAction.DESCRIBE, 1) == {instance_id(1): "running"}


async def test_a_guest_whose_qemu_dies_is_started_again_by_its_agent(
    nodes: list[_Node], requester: Requester
) -> None:
    node = nodes[0]

    async def pid() -> int | None:
        return node.pid(1)

    async with node.agent:
        await requester.accepted(1, instance_type=_SMALL)
        await node.agent.says("instances running")
        killed = await pid()
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await eventually(pid, lambda now: now not in {None, killed}, within_s=UP_WITHIN_S)
        assert set((await requester.inventory()).values()) == {"running"}


async def test_an_agent_that_is_told_to_leave_leaves_its_guests_running_and_complains_of_nothing(
    nodes: list[_Node], requester: Requester
) -> None:
    node = nodes[0]
    async with node.agent:
        await requester.accepted(1, instance_type=_SMALL)
        await node.agent.says("instances running")
        pid = node.pid(1)
        node.agent.signal(signal.SIGTERM)
        assert await node.agent.exit_code() == 0
        assert [line for line in node.agent.logs if line["level"] != "INFO"] == []
    assert pid is not None
    assert node.pid(1) == pid


async def test_whenever_its_agent_is_killed_each_disk_has_one_qemu_and_nothing_runs_unknown(
    tmp_path: Path, server: NatsProcess, requester: Requester
) -> None:
    few_seconds = {"qemu.shutdown_timeout_s": 1, "capacity.vcpu_per_core": 8.0}
    node = _Node(tmp_path / "n1", server, node="n1", zone="us-east-1a", **few_seconds)
    chance = random.Random(1)
    seen: set[str] = set()
    try:
        for killed_after_s in (0.1, 0.3, 1.0, 2.0):
            async with node.agent:
                seen |= set((await _is_as_it_says(node, requester)).values())
                storm = asyncio.create_task(_give_orders(requester, chance))
                await asyncio.wait([storm], timeout=killed_after_s)
                storm.cancel()
        async with node.agent:
            seen |= set((await _is_as_it_says(node, requester)).values())
            assert "running" in seen  # whether it still does is up to the last orders
            await requester.instances(NodeAction.TERMINATE, *_NUMBERS)
            ended = await _is_as_it_says(node, requester)
            assert set(ended.values()) == {"terminated"}
            assert list((node.folder / "state" / "guests").iterdir()) == []
            capacity = await requester.capacity()
            assert capacity.free.vcpu == capacity.total.vcpu
    finally:
        node.end_guests()


_NUMBERS: Final = range(1, 5)
_ORDERS: Final = (NodeAction.STOP, NodeAction.START, NodeAction.REBOOT, NodeAction.TERMINATE)


async def _give_orders(requester: Requester, chance: random.Random) -> None:
    """Launch an instance each and give orders to all, at random, for ever."""
    for number in _NUMBERS:
        with contextlib.suppress(nats.errors.NoRespondersError):
            await requester.launch(number, instance_type=_SMALL)
    while True:
        # More of the first: an instance that is terminated never comes back.
        (order,) = chance.choices(_ORDERS, weights=(10, 20, 5, 1))
        await requester.instances(order, chance.choice(_NUMBERS))
        await asyncio.sleep(chance.random() / 10)


async def _is_as_it_says(node: _Node, requester: Requester) -> dict[str, str]:
    """Wait until the node is at rest; return its inventory, which is what really runs."""
    at_rest = {"running", "stopped", "terminated"}
    known = await eventually(
        requester.inventory, lambda seen: set(seen.values()) <= at_rest, within_s=UP_WITHIN_S
    )
    running = {one for one, state in known.items() if state == "running"}
    assert {one for one in known if guest_pids(node.folder, one)} == running
    assert len(guest_pids(node.folder)) == len(running)
    return known
