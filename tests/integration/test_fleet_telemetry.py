"""The fleet telemetry collector against a real NATS server and real agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import nats
import pytest

from fleetcast import messages
from fleetcast.capacity import Resources
from fleetcast.subjects import RegionAction, region_subject
from lambdas.bus import CredentialsUnreadable
from lambdas.score_regions.signals.fleet_telemetry import FLEET_SIGNALS, fleet_telemetry_probe
from lambdas.settings import Region
from tests.agent_process import NODE, REGION, AgentProcess, Requester
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.settled_client import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.msg import Msg

    from fleetcast.scoring import Reading

NOW_S = 1_780_000_000.0
TYPES = ("t3.medium", "t3.2xlarge", "m8a.large")


def no_credentials(name: str) -> str:
    raise CredentialsUnreadable(f"secret {name} can't be read: AccessDenied")


async def read(url: str, *, secret: str | None = None) -> dict[tuple[str, str | None], Reading]:
    """Run the probe as a sweep does, in a thread; the readings by signal and type."""
    region = Region(name=REGION, nats_url=url, nats_credentials_secret=secret)
    probe = fleet_telemetry_probe(region, TYPES, no_credentials, known={}, now_s=NOW_S)
    readings = await asyncio.to_thread(probe.read)
    assert readings.keys() <= set(probe.expects)
    return {(key.signal, key.instance_type): reading for key, reading in readings.items()}


def statuses(readings: dict[tuple[str, str | None], Reading]) -> set[tuple[str, str | None]]:
    assert len(readings) == len(FLEET_SIGNALS) + len(TYPES)
    return {(reading.status, reading.error) for reading in readings.values()}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def answering(url: str, answer: bytes | None) -> AsyncIterator[None]:
    """Answer each request to the region with these bytes, or not at all."""
    client = await nats.connect(url)

    async def hear(message: Msg) -> None:
        if answer is not None:
            await message.respond(answer)

    await client.subscribe(region_subject(REGION, RegionAction.DESCRIBE_CAPACITY), cb=hear)
    await settled(client)
    try:
        yield
    finally:
        await client.close()


async def test_agents_tell_what_runs_and_what_they_have_room_for(
    tmp_path: Path, server: NatsProcess
) -> None:
    (tmp_path / "other").mkdir()
    other = {"node": "n2", "capacity.vcpu": 16, "zone": "us-east-1b"}
    async with (
        AgentProcess(tmp_path, server.url),
        AgentProcess(tmp_path / "other", server.url, **other),
        await Requester.connect(server.url) as requester,
    ):
        await requester.accepted(1)
        readings = await eventually(
            lambda: read(server.url), lambda seen: seen["running_jobs", None].value == 1
        )

    def value(signal: str, instance_type: str | None = None) -> float | None:
        return readings[signal, instance_type].value

    assert value("queue_depth") == 0
    assert value("running_jobs") == 1
    assert value("total_vcpus") == 24
    assert value("fleet_capacity", "t3.medium") == 11  # each has two vCPU
    assert value("fleet_capacity", "m8a.large") == 0  # nobody serves it
    assert readings["gpu_utilization", None].status == "not_offered"
    assert readings["fleet_capacity", "t3.2xlarge"].observed_at_s == NOW_S


async def test_a_region_without_agents_is_missing(server: NatsProcess) -> None:
    assert statuses(await read(server.url)) == {("missing", f"region {REGION}: nobody listens")}


async def test_agents_that_say_nothing_leave_everything_missing(server: NatsProcess) -> None:
    async with answering(server.url, None):
        readings = await read(server.url)
    assert statuses(readings) == {("missing", f"region {REGION}: no answer within 1 s")}


@pytest.mark.parametrize("answer", [b"", b"no JSON", b'{"v":2}', b'{"v":1,"node":"n1"}'])
async def test_answers_that_are_not_understood_are_no_readings(
    server: NatsProcess, answer: bytes
) -> None:
    async with answering(server.url, answer):
        assert await read(server.url) == {}


async def test_an_answer_that_is_not_understood_takes_nothing_from_the_others(
    server: NatsProcess,
) -> None:
    reply = messages.CapacityReply(
        node=NODE,
        zone=None,
        closed=None,
        total=Resources(vcpu=8, memory_mib=1024),
        free=Resources(vcpu=8, memory_mib=1024),
        room={"t3.medium": 4},
        armed={},
    )
    async with answering(server.url, b"no JSON"), answering(server.url, messages.encode(reply)):
        readings = await read(server.url)
    assert readings["fleet_capacity", "t3.medium"].value == 4


async def test_a_region_that_cannot_be_reached_has_failed(server: NatsProcess) -> None:
    await server.kill()
    [(status, error)] = statuses(await read(server.url))
    assert status == "failed"
    assert error is not None
    assert "can't connect" in error


async def test_a_secret_that_cannot_be_read_is_told(server: NatsProcess) -> None:
    readings = await read(server.url, secret="nats")  # noqa: S106 - its name
    assert statuses(readings) == {
        ("failed", f"region {REGION}: secret nats can't be read: AccessDenied")
    }
