"""An agent for real guests on this host, while other programs take its memory."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.agent_process import AgentProcess, Requester
from tests.eventually import eventually
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_TAKEN_MIB: Final = 2_048
# Other tests and programs come and go meanwhile.
_OF_OTHERS_MIB: Final = 1_024
# Who isn't root, and has no such limit, may not run ahead of anybody.
_MAY_RUN_AHEAD: Final = os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_RTPRIO)[0] > 0
_AHEAD: Final = os.SCHED_RR if _MAY_RUN_AHEAD else os.SCHED_OTHER
_TAKE: Final = f"taken = b'x' * ({_TAKEN_MIB} << 20); print(len(taken), flush=True); input()"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@asynccontextmanager
async def _memory_is_taken() -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _TAKE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    assert await process.stdout.readline()
    yield
    process.kill()
    await process.wait()


async def test_memory_that_others_take_is_no_room_until_they_have_gone(
    server: NatsProcess, tmp_path: Path
) -> None:
    settings = {
        "driver": "qemu",
        "qemu.accelerator": "tcg",
        # Nothing is reserved, so whatever others use is too much.
        "capacity.reserve_memory_mib": 0,
        "capacity.vcpu": 1_000,
        "capacity.vcpu_per_core": 64,
    }
    agent = AgentProcess(tmp_path, server.url, **settings)
    async with agent, await Requester.connect(server.url) as requester:

        async def free_mib() -> int:
            capacity = await requester.capacity()
            return capacity.free.memory_mib

        assert os.sched_getscheduler(agent.pid) & ~os.SCHED_RESET_ON_FORK == _AHEAD
        total_mib = (await requester.capacity()).total.memory_mib
        before_mib = await eventually(free_mib, lambda free: free < total_mib)
        line = await agent.says("others use more memory than is reserved for them")
        assert line["withheld_mib"] > 0
        less_mib = before_mib - _TAKEN_MIB + _OF_OTHERS_MIB
        async with _memory_is_taken():
            await eventually(free_mib, lambda free: free < less_mib)
            taken = await requester.capacity()
            room = taken.room.get("t3.nano", 0)
            assert room <= max(taken.free.memory_mib, 0) // 512
        await eventually(free_mib, lambda free: free > less_mib)
