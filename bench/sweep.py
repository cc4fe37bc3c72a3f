"""What a sweep costs: AWS calls, time in units of one call's latency, memory.

The real function, in a process of its own for each size (`python -m bench.sweep` is that process).
A first sweep, not measured, gets its answers from the AWS emulator and the AWS fakes. The measured
one makes its clients anew and gets the same answers again, each after CALL_LATENCY_S: what the
emulator itself takes on the same two cores is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.httpsession
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from bench.report import FOLDER, Figure, publish
from fleetcast.instance_types import ec2_catalogue
from fleetcast.local.aws_fakes import AwsFakes
from fleetcast.local.aws_fakes.plausible import plausible_scenario
from fleetcast.local.emulator import Emulator, start_emulator
from fleetcast.local.processes import Processes
from fleetcast.local.signal_sources import CLUSTER, JOB_STACK, SignalSources
from lambdas.score_regions import handler
from lambdas.settings import Region, ScoreRegionsSettings, encode_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CALL_LATENCY_S: Final = 0.1
SIZES: Final = ((5, 20), (10, 20), (20, 20), (30, 20), (30, 100))  # regions, types
_HOME_REGION: Final = "us-east-1"
_SWEEP_DEADLINE_S: Final = 50


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One cold sweep as its process measured it."""

    calls: int
    wall_s: float
    peak_mib: float
    failed: int


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
    grown = ", ".join(
        f"{regions}: {sweep.wall_s / CALL_LATENCY_S:.1f}"
        for (regions, types), sweep in sweeps.items()
        if types == SIZES[0][1]
    )
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
            about="time for 30 regions / time for 5",
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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.sweep"),
        env=os.environ | emulator.environment() | endpoints | encode_settings(settings),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the sweep of {len(regions)} x {len(types)} failed")
    return Sweep(**json.loads(output.splitlines()[-1]))


def _regions(count: int) -> list[str]:
    return sorted(boto3.session.Session().get_available_regions("ec2"))[:count]


def _types(count: int) -> list[str]:
    """Take types of common families, those with capacity blocks first."""
    families = ("p5", "p4d", "trn1", "t3", "m7i", "c7i", "r7i", "g6", "m6i", "c6i", "r6i", "m5")
    of_family = {
        family: [one.name for one in ec2_catalogue() if one.family == family] for family in families
    }
    return [name for family in families for name in of_family[family]][:count]


class _Context:
    def __init__(self, sweep_id: str) -> None:
        self.aws_request_id = sweep_id
        self._ends_s = time.monotonic() + _SWEEP_DEADLINE_S

    def get_remaining_time_in_millis(self) -> int:
        return int((self._ends_s - time.monotonic()) * 1000)


class _Body(BytesIO):
    """What an AWSResponse reads its content from."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


class _Answers:
    """Stands between botocore and the network: records answers, then gives them again."""

    def __init__(self) -> None:
        self.calls = 0
        self._send = botocore.httpsession.URLLib3Session.send
        self._recorded: dict[tuple[str, ...], AWSResponse] = {}

    def record(self, session: Any, request: Any) -> AWSResponse:  # noqa: ANN401 - botocore's
        if _text(request.headers.get("X-Amz-Target", "")).startswith("DynamoDB"):
            # Nothing is remembered yet, and what is written is taken.
            answer = AWSResponse(request.url, 200, HTTPHeaders(), _Body(b"{}"))
            _ = answer.content
        else:
            answer = self._send(session, request)
            _ = answer.content  # read it while the connection is there
        self._recorded[_what_is_asked(request)] = answer
        return answer

    def replay(self, _: Any, request: Any) -> AWSResponse:  # noqa: ANN401 - botocore's
        self.calls += 1
        time.sleep(CALL_LATENCY_S)
        return self._recorded[_what_is_asked(request)]


def _what_is_asked(request: Any) -> tuple[str, ...]:  # noqa: ANN401 - botocore's
    """Return what makes two requests the same question: not their times and their ids."""
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    scope = headers["authorization"].partition("Credential=")[2].split("/")[2:4]
    target = headers.get("x-amz-target", "")
    body = _text(request.body or b"")
    if scope[1] in {"dynamodb", "monitoring"}:
        body = ""
    elif not target:
        pairs = sorted(body.split("&"))
        body = "&".join(pair for pair in pairs if "Time" not in pair and "Date" not in pair)
    return (*scope, target, body)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _method(answer: Callable[[Any, Any], AWSResponse]) -> Callable[[Any, Any], AWSResponse]:
    """Make a function that a class binds to its instances; a bound method isn't one."""

    def send(session: Any, request: Any) -> AWSResponse:  # noqa: ANN401 - botocore's
        return answer(session, request)

    return send


def _sweep_once() -> None:
    """Sweep twice, the second time measured, and print what it took."""
    answers = _Answers()
    network: Any = botocore.httpsession.URLLib3Session
    network.send = _method(answers.record)
    recorded: Any = _Context("recorded")
    handler.handle({}, recorded)

    handler.at_cold_start.cache_clear()
    network.send = _method(answers.replay)
    measured: Any = _Context("measured")
    began_s = time.monotonic()
    summary = handler.handle({}, measured)
    wall_s = time.monotonic() - began_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    statuses = summary["readings_n"]
    failed = sum(statuses.get(kind, 0) for kind in ("failed", "refused"))
    took = {"calls": answers.calls, "wall_s": wall_s, "peak_mib": peak_mib, "failed": failed}
    print(json.dumps(took))


if __name__ == "__main__":
    _sweep_once()
