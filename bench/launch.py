"""Where the time of a RunInstances call goes, with DynamoDB: one figure for each thing waited for.

The function's own code, one launch at a time, against a real NATS server, a real agent and the
local emulator's DynamoDB. What the emulator takes says little of DynamoDB; how often it is asked,
and what is left for the function, does. API Gateway and XML are left out.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import botocore.session

from bench.launcher import bus_to
from bench.nodes import INSTANCE_TYPE, REGION, running_nodes
from bench.report import FOLDER, Figure, publish
from fleetcast.instance_types import ec2_catalogue
from fleetcast.local.emulator import start_emulator
from fleetcast.local.nats_server import nats_server
from fleetcast.local.processes import Processes
from lambdas.fleet_table import FleetTable
from lambdas.region_scores import RegionScoresTable
from lambdas.run_instances.launching import run_instances
from lambdas.run_instances.refusals import RefusalMemory
from lambdas.run_instances.services import Call, Services
from lambdas.settings import Region, RunInstancesSettings
from tests.tables import FLEET, REGION_SCORES, create_table

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from lambdas.bus import Bus

LAUNCHES: Final = 300
_WARM_UP: Final = 20
_PARAMETERS: Final = {
    "ImageId": "ami-0123456789abcdef0",
    "InstanceType": INSTANCE_TYPE,
    "MinCount": 1,
    "MaxCount": 1,
}
_AWS_REGION: Final = "us-east-1"

_P = ParamSpec("_P")
_ResultT = TypeVar("_ResultT")


class _Stopwatch:
    """Adds up how long each part of one launch took, by its name."""

    def __init__(self) -> None:
        self.took_s: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, part: Callable[_P, _ResultT]) -> Callable[_P, _ResultT]:
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _ResultT:
            began_s = time.perf_counter()
            try:
                return part(*args, **kwargs)
            finally:
                self.took_s[name] += time.perf_counter() - began_s

        return run

    def timed_wait(
        self, name: str, part: Callable[_P, Coroutine[Any, Any, _ResultT]]
    ) -> Callable[_P, Coroutine[Any, Any, _ResultT]]:
        async def run(*args: _P.args, **kwargs: _P.kwargs) -> _ResultT:
            began_s = time.perf_counter()
            try:
                return await part(*args, **kwargs)
            finally:
                self.took_s[name] += time.perf_counter() - began_s

        return run


async def run() -> None:
    """Launch one after another and publish what each launch waited for."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=FOLDER) as folder,
        Processes() as processes,
        nats_server() as server,
    ):
        emulator = start_emulator(processes, Path(folder) / "emulator", region=_AWS_REGION)
        os.environ.update(emulator.environment())
        dynamodb: Any = botocore.session.get_session().create_client("dynamodb")
        for table in (FLEET, REGION_SCORES):
            create_table(dynamodb, table)
        slots = LAUNCHES + _WARM_UP
        async with (
            running_nodes("tokens", [server], count=1, slots=slots),
            bus_to(server.url) as bus,
        ):
            launches = [await _launch(dynamodb, bus, server.url) for _ in range(slots)]
    publish("launch", _figures(launches[_WARM_UP:]))


async def _launch(dynamodb: Any, bus: Bus, nats_url: str) -> Mapping[str, float]:  # noqa: ANN401 - botocore's
    stopwatch = _Stopwatch()
    fleet, scores = FleetTable(dynamodb, FLEET), RegionScoresTable(dynamodb, REGION_SCORES)
    parts: Any = {
        (fleet.launches, "begin"): "write_down_ms",
        (scores, "read_scores"): "read_scores_ms",
        (fleet.launches, "place"): "write_end_ms",
    }
    for (table, method), name in parts.items():
        setattr(table, method, stopwatch.timed(name, getattr(table, method)))

    class TimedBus:
        ask = staticmethod(stopwatch.timed_wait("ask_node_ms", bus.ask))
        gather = staticmethod(bus.gather)

    services = Services(
        settings=RunInstancesSettings(
            fleet_table=FLEET,
            region_scores_table=REGION_SCORES,
            regions=(Region(name=REGION, nats_url=nats_url),),
            default_region=REGION,
        ),
        instance_types=ec2_catalogue(),
        fleet=fleet,
        scores=scores,
        bus=TimedBus(),
        known_nodes=lambda _: (),
        refusals=RefusalMemory(time.monotonic),
        now_s=time.time,
        clock_s=time.monotonic,
        sleep=asyncio.sleep,
        random_hex=lambda digits: secrets.token_hex(digits)[:digits],
    )
    call = Call(account_id="0" * 12, request_id="bench", deadline_s=time.monotonic() + 27)
    began_s = time.perf_counter()
    await run_instances(services, call, _PARAMETERS)
    total_s = time.perf_counter() - began_s
    took = dict(stopwatch.took_s)
    return took | {"function_ms": total_s - sum(took.values()), "total_ms": total_s}


def _figures(launches: list[Mapping[str, float]]) -> list[Figure]:
    about = {
        "total_ms": "one launch, p50",
        "write_down_ms": "reservation and instance into DynamoDB, one transaction",
        "read_scores_ms": "the regions' scores from DynamoDB, one query",
        "ask_node_ms": "the node's ACCEPT over NATS, its journal included",
        "write_end_ms": "where the instance is into DynamoDB, one transaction",
        "function_ms": "the function's own work",
    }
    p50_ms = {name: statistics.median(one[name] for one in launches) * 1000 for name in about}
    return [
        Figure(
            key=name,
            value=round(p50_ms[name], 2),
            about=f"{text}; {p50_ms[name] / p50_ms['total_ms']:.0%}",
        )
        for name, text in about.items()
    ]
