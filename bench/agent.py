"""What an agent costs its host, and whether it answers as quickly while real guests boot.

The agent is the real one in a process of its own, and is only looked at from outside. The guests
that boot in the background are QEMU's, with the small Linux image; without QEMU, and Debian's
packages that make the image, those figures are left out, and that is said.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.lone_agent import lone_agent
from bench.report import FOLDER, Figure, publish
from fleetcast.instance_types import ec2_catalogue
from fleetcast.local.nats_server import nats_server
from fleetcast.local.qemu_guests import write_image_catalogue
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.lone_agent import LoneAgent

INSTANCES: Final = 100
PROBES: Final = 150
ROUNDS: Final = 3
BOOTING_AT_ONCE: Final = 2
_MICRO: Final = "t3.micro"
_TINY: Final = "bench.tiny"
_TINY_MIB: Final = 128
# Longer than a re-arming pass, and the one after it that retires what was replaced.
_QUIET_S: Final = 0.12
_BETWEEN_PROBES_S: Final = 0.02
_LEASE_MS: Final = 10_000
_AT_WORK_S: Final = 3.0
_UP_WITHIN_S: Final = 90.0


async def run() -> None:
    """Measure all of it and publish the figures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figures = await _all_types()
    if shutil.which("qemu-system-x86_64"):
        figures += await _beside_guests()
    else:
        print("no qemu-system-x86_64: what real guests cost is left out")
    publish("agent", figures)


# --- all of EC2's types --------------------------------------------------------------------


async def _all_types() -> list[Figure]:
    everything = [one.name for one in ec2_catalogue()]
    all_types = await _filled(everything)
    one_type = await _filled([_MICRO])
    rearming_ms = [
        max(each - statistics.median(one_type.launches_ms), 0.0) for each in all_types.launches_ms
    ]
    mean_ms = statistics.fmean(rearming_ms)
    return [
        Figure(
            key="rss_mib",
            value=round(all_types.rss_mib, 1),
            about=f"with {INSTANCES} simulated instances, {len(everything)} types served",
        ),
        Figure(
            key="rearm_cpu_ms",
            value=round(mean_ms, 2),
            about=f"CPU after one launch beyond that with one type, mean of {INSTANCES}",
        ),
        Figure(
            key="rearm_cpu_worst_ms",
            value=round(max(rearming_ms), 2),
            about="the same, after the launch with which most types are armed anew",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class _Filled:
    """What an agent took. launches_ms: its CPU for each launch, with all that follows from it."""

    rss_mib: float
    launches_ms: Sequence[float]


async def _filled(instance_types: Sequence[str]) -> _Filled:
    """Launch instances one by one on a host that they fill."""
    micro = ec2_catalogue().lookup(_MICRO)
    settings = {
        "driver": "simulated",
        "zone": "bench-1a",
        "instance_types": list(instance_types),
        "capacity.vcpu": micro.vcpu * INSTANCES,
        "capacity.memory_mib": 2 * 2**20,
        "capacity.gpus": 8,
    }
    launches_ms: list[float] = []
    with nats_server() as server, tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        async with lone_agent(Path(folder), server.url, settings) as agent:
            for _ in range(INSTANCES):
                before_ms = agent.busy_ms()
                await agent.launch(_MICRO)
                await asyncio.sleep(_QUIET_S)
                launches_ms.append(agent.busy_ms() - before_ms)
            return _Filled(rss_mib=agent.rss_mib(), launches_ms=launches_ms)


# --- beside real guests --------------------------------------------------------------------


async def _beside_guests() -> list[Figure]:
    with nats_server() as server, tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder, catalogue = Path(name), Path(name) / "images.toml"
        write_image_catalogue(catalogue)
        settings = {
            "driver": "qemu",
            "instance_types": [_TINY],
            "own_instance_types": [{"name": _TINY, "vcpu": 1, "memory_mib": _TINY_MIB}],
            "capacity.vcpu_per_core": 16,
            "images.catalogue": str(catalogue),
            "qemu.shutdown_timeout_s": 1,
        }
        async with lone_agent(folder, server.url, settings) as agent:
            overhead = await _overhead(agent, folder / "state" / "guests")
            idle_s: list[float] = []
            busy_s: list[float] = []
            booted_n = 0
            for _ in range(ROUNDS):
                idle_s += await _accept_latencies_s(agent)
                enough = asyncio.Event()
                async with asyncio.TaskGroup() as background:
                    booting = [
                        background.create_task(_keep_booting(agent, enough))
                        for _ in range(BOOTING_AT_ONCE)
                    ]
                    busy_s += await _accept_latencies_s(agent)
                    enough.set()
                booted_n += sum(one.result() for one in booting)
    about = f"while {booted_n} guests were booted, {BOOTING_AT_ONCE} at a time"
    return [
        _quotient("accept_busy_over_idle", busy_s, idle_s, 50, f"p50 {about}"),
        _quotient("accept_busy_over_idle_p99", busy_s, idle_s, 99, f"p99 {about}"),
        *overhead,
    ]


async def _accept_latencies_s(agent: LoneAgent) -> list[float]:
    """Hold instances, which is promised as a launch is but boots nothing, and give them up."""
    took_s: list[float] = []
    for _ in range(PROBES):
        began_s = time.perf_counter()
        held = await agent.launch(_TINY, hold_ms=_LEASE_MS)
        took_s.append(time.perf_counter() - began_s)
        await agent.release(*held)
        await asyncio.sleep(_BETWEEN_PROBES_S)
    return took_s


async def _keep_booting(agent: LoneAgent, enough: asyncio.Event) -> int:
    """Boot one guest after the other, and end it when its kernel is at work; return how many."""
    booted_n = 0
    while not enough.is_set():
        _, instance_id = await agent.launch(_TINY)
        await asyncio.sleep(_AT_WORK_S)  # without asking how far it is: that would be load, too
        booted_n += await agent.state_of(instance_id) == "running"
        await agent.terminate(instance_id)
    return booted_n


async def _overhead(agent: LoneAgent, guests: Path) -> list[Figure]:
    """Compare what is booked beside a guest's memory with what its QEMU holds beside it."""
    before_mib = (await agent.capacity()).free.memory_mib
    _, instance_id = await agent.launch(_TINY)
    charged_mib = before_mib - (await agent.capacity()).free.memory_mib - _TINY_MIB
    await eventually(
        lambda: agent.console_of(instance_id),
        lambda console: b"guest: ready" in console,
        within_s=_UP_WITHIN_S,
    )
    pid = int((guests / instance_id / "pid").read_text(encoding="utf-8"))
    measured_mib = _beside_its_memory_mib(pid, _TINY_MIB)
    await agent.terminate(instance_id)
    about = f"beside a guest of {_TINY_MIB} MiB that is up"
    return [
        Figure(key="overhead_charged_mib", value=charged_mib, about=f"booked {about}"),
        Figure(key="overhead_measured_mib", value=round(measured_mib, 1), about=f"held {about}"),
    ]


def _beside_its_memory_mib(pid: int, memory_mib: int) -> float:
    """Return what a QEMU holds beside its guest's memory, which is the one mapping so large."""
    total_kib = beside_kib = size_kib = 0
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "Size":
            size_kib = int(value.split()[0])
        elif name == "Rss":
            total_kib += int(value.split()[0])
            beside_kib += int(value.split()[0]) if size_kib != memory_mib * 1024 else 0
    if beside_kib == total_kib:
        raise RuntimeError("the guest's memory was not found among its QEMU's mappings")
    return beside_kib / 1024


def _quotient(
    key: str, busy_s: Sequence[float], idle_s: Sequence[float], percentile: int, about: str
) -> Figure:
    busy, idle = (
        statistics.quantiles(each, n=100)[percentile - 1] * 1000 for each in (busy_s, idle_s)
    )
    about = f"{about}: {busy:.1f} / {idle:.1f} ms"
    return Figure(key=key, value=round(busy / idle, 2), about=about)
