"""What an agent tells Prometheus, read as Prometheus reads it."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from typing import TYPE_CHECKING

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.agent_process import NODE, REGION, AgentProcess, Requester
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free: int = listener.getsockname()[1]
    return free


async def _scrape(port: int) -> _Samples:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    text = await asyncio.to_thread(read)
    return {
        (sample.name.removeprefix("fleetcast_"), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_room_instances_and_launches_are_served_on_loopback_and_nowhere_else(
    server: NatsProcess, tmp_path: Path, port: int
) -> None:
    settings = {"telemetry.prometheus_port": port}
    async with (
        AgentProcess(tmp_path, server.url, **settings) as agent,
        await Requester.connect(server.url) as requester,
    ):
        before = await _scrape(port)
        assert before["room", ("t3.medium",)] == 4
        assert before["total", ("vcpu",)] == before["free", ("vcpu",)] == 8
        assert before["closed", ()] == 0
        info = next(labels for name, labels in before if name == "agent_info")
        assert {NODE, REGION, "none"} <= set(info)
        assert await requester.accepted(1)
        after = await _scrape(port)
        assert after["room", ("t3.medium",)] == 3
        assert ("room", ("t3.2xlarge",)) not in after  # only types with room
        assert after["free", ("memory_mib",)] == 32_768 - 4_096
        assert after["launch_requests_total", ("accepted",)] == 1
        states = {labels: value for (name, labels), value in after.items() if name == "instances"}
        assert sum(states.values()) == 1
        addresses = {
            one.laddr.ip
            for one in psutil.Process(agent.pid).net_connections()
            if one.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}


async def test_a_port_that_is_taken_ends_the_agent_with_its_key(
    server: NatsProcess, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        agent = AgentProcess(tmp_path, server.url, **{"telemetry.prometheus_port": taken})
        await agent.start()
        assert await agent.exit_code() == 1
        (line,) = [one for one in agent.logs if one["level"] == "CRITICAL"]
        assert "telemetry.prometheus_port" in line["why"]
