"""What a sweep costs: AWS calls, time in units of one call's latency, memory.

The real function, in processes of its own for each size (bench.one_sweep). The first one gets its
answers from the AWS emulator and the AWS fakes. The others, which are measured, get the same
answers again, each after CALL_LATENCY_S: what the emulator itself takes on the same two cores is
left out. The fastest counts, for what slows down one of them is something else on this machine.

Left out, too, is what connecting costs: over TLS some 2 ms of CPU for each connection (ADR 0009).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import boto3

from bench.one_sweep import CALL_LATENCY_S, Sweep
from bench.report import FOLDER, Figure, publish
from fleetcast.instance_types import ec2_catalogue
from fleetcast.local.aws_fakes import AwsFakes
from fleetcast.local.aws_fakes.plausible import plausible_scenario
from fleetcast.local.emulator import Emulator, start_emulator
from fleetcast.local.processes import Processes
from fleetcast.local.signal_sources import CLUSTER, JOB_STACK, SignalSources
from lambdas.settings import Region, ScoreRegionsSettings, encode_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIZES: Final = ((5, 20), (10, 20), (20, 20), (30, 20), (30, 100))  # regions, types
_HOME_REGION: Final = "us-east-1"
_TIMES: Final = 3


async def run() -> None:
    """Sweep fleets of several sizes and publish the figures."""
    regions = _regions(max(size for size, _ in SIZES))
    types = _types(max(count for _, count in SIZES))
    scenario = plausible_scenario(regions, dict.fromkeys(types, 1.0))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=FOLDER) as folder,
        Processes() as processes,
        AwsFakes(lambda: scenario) as fakes,
    ):
        emulator = start_emulator(processes, Path(folder) / "emulator", region=_HOME_REGION)
        session = boto3.session.Session("test", "test", region_name=_HOME_REGION)
        with SignalSources(session, emulator.url, regions):
            sweeps = {
                (regions_n, types_n): await _sweep(
                    emulator, fakes.url, regions[:regions_n], types[:types_n]
                )
                for regions_n, types_n in SIZES
            }
    publish("sweep", _figures(sweeps))


def _figures(sweeps: dict[tuple[int, int], Sweep]) -> list[Figure]:
    sizes = [(regions, sweep) for (regions, types), sweep in sweeps.items() if types == SIZES[0][1]]
    grown = ", ".join(f"{regions}: {sweep.wall_s / CALL_LATENCY_S:.1f}" for regions, sweep in sizes)
    busy = ", ".join(f"{regions}: {sweep.cpu_s * 1000:.0f}" for regions, sweep in sizes)
    ten, five, thirty = sweeps[10, 20], sweeps[5, 20], sweeps[30, 20]
    return [
        Figure(
            key="calls_10x20",
            value=ten.calls,
            about="AWS calls of a cold sweep of 10 regions x 20 types, DynamoDB's among them",
        ),
        Figure(
            key="wall_in_latencies_10x20",
            value=round(ten.wall_s / CALL_LATENCY_S, 1),
            about=f"its time in units of one call; by regions: {grown}",
        ),
        Figure(
            key="wall_30_regions_over_5",
            value=round(thirty.wall_s / five.wall_s, 2),
            about=f"time for 30 regions / time for 5; ms of CPU by regions: {busy}",
        ),
        Figure(
            key="peak_mib_30x100",
            value=round(sweeps[30, 100].peak_mib),
            about="memory of the process at most, 30 regions x 100 types",
        ),
        Figure(
            key="failed_signals",
            value=sum(sweep.failed for sweep in sweeps.values()),
            about="signals that could not be read, in all sweeps",
        ),
    ]


async def _sweep(
    emulator: Emulator,
    fakes_url: str,
    regions: Sequence[str],
    types: Sequence[str],
) -> Sweep:
    settings = ScoreRegionsSettings(
        region_scores_table="RegionScores",
        regions=tuple(
            Region(
                name=region,
                nats_url="nats://127.0.0.1:1",
                job_stack_name=JOB_STACK,
                cluster_name=CLUSTER,
            )
            for region in regions
        ),
        scored_instance_types=tuple(types),
    )
    endpoints = {"AWS_ENDPOINT_URL_EC2": fakes_url, "AWS_ENDPOINT_URL_PRICING": fakes_url}
    environment = os.environ | emulator.environment() | endpoints | encode_settings(settings)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        await _in_a_process("record", folder, environment)
        outputs = [await _in_a_process("measure", folder, environment) for _ in range(_TIMES)]
    measured = [Sweep(**json.loads(output.splitlines()[-1])) for output in outputs]
    return min(measured, key=lambda sweep: sweep.wall_s)


async def _in_a_process(act: str, folder: str, environment: Mapping[str, str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.one_sweep", act, folder),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the process to {act} a sweep ended with {process.returncode}")
    return output


def _regions(count: int) -> list[str]:
    return sorted(boto3.session.Session().get_available_regions("ec2"))[:count]


def _types(count: int) -> list[str]:
    """Take types of common families, those with capacity blocks first."""
    families = ("p5", "p4d", "trn1", "t3", "m7i", "c7i", "r7i", "g6", "m6i", "c6i", "r6i", "m5")
    of_family = {
        family: [one.name for one in ec2_catalogue() if one.family == family] for family in families
    }
    return [name for family in families for name in of_family[family]][:count]
