"""What a node tells Prometheus, on loopback: its room, its load, its instances and its launches.

The numbers are those of DescribeCapacity. Labels are instance types with room, states and outcomes:
nothing that an owner has given, and nothing that grows with use.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import Metric

    from fleetcast.agent.capacity.report import CapacityReport
    from fleetcast.agent.instances import Instances

_ADDRESS: Final = "127.0.0.1"
_SAID_WITHIN_S: Final = 5


class Metrics:
    """Serves them. launches: how many requests had which outcome, counted on by who decides."""

    def __init__(
        self,
        *,
        region: str,
        capacity_report: CapacityReport,
        instances: Instances,
        launches: Mapping[str, int],
    ) -> None:
        self._region = region
        self._capacity_report = capacity_report
        self._instances = instances
        self._launches = launches

    async def serve(self, port: int) -> None:
        """Serve /metrics on loopback until cancelled. Raises InvalidConfiguration."""
        registry = CollectorRegistry()
        registry.register(_Asked(self, asyncio.get_running_loop()))
        try:
            server, thread = start_http_server(port, addr=_ADDRESS, registry=registry)
        except OSError as problem:
            raise InvalidConfiguration(
                "telemetry.prometheus_port",
                f"{port} can't be listened on: {problem.strerror}",
                expected="a port that is free on this host",
            ) from problem
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def families(self) -> list[Metric]:
        """Return what is so now."""
        capacity = self._capacity_report.capacity()
        info = InfoMetricFamily("fleetcast_agent", "The agent of this node")
        info.add_metric(
            [],
            {
                "node": capacity.node,
                "region": self._region,
                "version": str(capacity.version),
                "accelerator": str(capacity.accelerator or "none"),
            },
        )
        closed = GaugeMetricFamily(
            "fleetcast_closed", "1 while the node takes no launches", value=bool(capacity.closed)
        )
        states = Counter[str](entry.state for entry in self._instances)
        return [
            info,
            closed,
            _gauges("total", "What instances may use", "resource", _amounts(capacity.total)),
            _gauges("free", "What is free of it", "resource", _amounts(capacity.free)),
            _gauges("room", "How many more of a type fit", "instance_type", capacity.room),
            _gauges("utilization_percent", "Of the host", "resource", _percents(capacity.load)),
            _gauges("instances", "Instances by state, also ended ones of late", "state", states),
            _launches(self._launches),
        ]


class _Asked(Collector):
    """Prometheus's side: each scrape has a thread of its own, and asks the event loop."""

    def __init__(self, metrics: Metrics, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Return what is so now. Raises TimeoutError when the loop is held up."""

        async def ask() -> list[Metric]:
            return self._metrics.families()

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        yield from asked.result(_SAID_WITHIN_S)


def _gauges(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"fleetcast_{name}", about, labels=[label])
    for value, amount in values.items():
        family.add_metric([value], amount)
    return family


def _launches(launches: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "fleetcast_launch_requests", "Launch requests by outcome", labels=["outcome"]
    )
    for outcome, count in launches.items():
        family.add_metric([outcome], count)
    return family


def _amounts(resources: msgspec.Struct) -> dict[str, float]:
    return msgspec.structs.asdict(resources)


def _percents(load: msgspec.Struct | msgspec.UnsetType) -> dict[str, float]:
    """Return what is measured."""
    if load is msgspec.UNSET:
        return {}
    return {
        name.removesuffix("_utilization"): percent
        for name, percent in msgspec.structs.asdict(load).items()
        if name.endswith("_utilization") and isinstance(percent, float)
    }
