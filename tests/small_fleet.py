"""A fleet small enough for one test: tables in moto, real servers, real agents, the function."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lambdas.bus import Bus
from lambdas.fleet_table import FleetTable
from lambdas.run_instances import handler
from lambdas.settings import Region, RunInstancesSettings, encode_settings
from tests.agent_process import AgentProcess
from tests.ec2_endpoint import ACCOUNT
from tests.nats_process import NatsProcess
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest
    from mypy_boto3_dynamodb import DynamoDBClient

    from lambdas.records import InstanceRecord

TYPE: Final = "t3.medium"
TYPE_VCPU: Final = 2
TYPE_MEMORY_MIB: Final = 4096
_NOWHERE: Final = "nats://127.0.0.1:1"


@dataclass
class SmallFleet:
    """Regions and nodes by name; a node has room for some t3.medium and no more.

    The world outside of the function runs on a loop of its own, as it does in earnest.
    """

    folder: Path
    outside: asyncio.Runner
    dynamodb: DynamoDBClient
    monkeypatch: pytest.MonkeyPatch
    servers: dict[str, NatsProcess] = field(default_factory=dict)
    agents: dict[str, AgentProcess] = field(default_factory=dict)

    def start_region(self, name: str) -> None:
        """Start a region's NATS, or start it again."""
        if name not in self.servers:
            folder = self.folder / name
            folder.mkdir()
            self.servers[name] = NatsProcess(folder)
        self.outside.run(self.servers[name].start())

    def kill_region(self, name: str) -> None:
        self.outside.run(self.servers[name].kill())

    def start_agent(self, region: str, node: str, *, slots: int, **settings: object) -> None:
        """Start a node's agent, and wait until it serves. settings: what differs in agent.toml."""
        folder = self.folder / node
        folder.mkdir()
        self.agents[node] = AgentProcess(
            folder,
            self.servers[region].url,
            node=node,
            region=region,
            zone=f"{region}a",
            **{
                "capacity.vcpu": TYPE_VCPU * slots,
                "capacity.memory_mib": TYPE_MEMORY_MIB * slots,
            }
            | settings,
        )
        self.restart_agent(node)

    def restart_agent(self, node: str) -> None:
        async def start() -> None:
            await self.agents[node].start()
            await self.agents[node].says("agent ready")

        self.outside.run(start())

    def kill_agent(self, node: str) -> None:
        self.outside.run(self.agents[node].kill())

    def start_function(self, *regions: str, default_region: str | None = None) -> None:
        """Tell the function of these regions; one whose NATS was never started is nowhere."""
        settings = RunInstancesSettings(
            fleet_table=FLEET,
            region_scores_table=REGION_SCORES,
            regions=tuple(
                Region(
                    name=name,
                    nats_url=self.servers[name].url if name in self.servers else _NOWHERE,
                )
                for name in regions
            ),
            default_region=default_region or regions[0],
        )
        for variable, value in encode_settings(settings).items():
            self.monkeypatch.setenv(variable, value)

    def records(self, account: str = ACCOUNT) -> list[InstanceRecord]:
        """Return what the table holds."""
        return FleetTable(self.dynamodb, FLEET).instances(account)

    def items(self) -> list[dict[str, Any]]:
        """Return every item of the Fleet table as it stands there."""
        return [dict(item) for item in self.dynamodb.scan(TableName=FLEET)["Items"]]

    def agent_logs(self) -> str:
        """Return all lines of all agents."""
        return "\n".join(str(line) for agent in self.agents.values() for line in agent.logs)

    async def stop(self) -> None:
        """End all processes."""
        async with contextlib.AsyncExitStack() as ends:  # all of them, whatever one of them says
            for server in self.servers.values():
                ends.push_async_callback(server.kill)
            for agent in self.agents.values():
                ends.push_async_callback(agent.kill)


@contextlib.contextmanager
def small_fleet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    """Make a fleet without regions, and a function that has not been started."""
    buses: list[Bus] = []

    class NotedBus(Bus):
        def __init__(self, *what: Any, **how: Any) -> None:  # noqa: ANN401 - passed on
            super().__init__(*what, **how)
            buses.append(self)

    monkeypatch.setattr(handler, "Bus", NotedBus)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    handler.at_cold_start.cache_clear()
    with tables(FLEET, REGION_SCORES) as dynamodb, asyncio.Runner() as outside:
        fleet = SmallFleet(folder, outside, dynamodb, monkeypatch)
        try:
            yield fleet
        finally:
            for bus in buses:
                handler.loop.run_until_complete(bus.close())
            handler.at_cold_start.cache_clear()
            outside.run(fleet.stop())
