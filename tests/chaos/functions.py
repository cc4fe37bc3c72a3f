"""The functions of a test: the real code, each over a table client and connections of its own.

Each runs on a thread and a loop of its own, as each invocation of a Lambda has a process: one that
waits, or is frozen, keeps no other one waiting. What happens to it is told by its `faults`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fleetcast.instance_types import ec2_catalogue
from lambdas.bus import Bus
from lambdas.fleet_table import FleetTable
from lambdas.reconcile import region as reconcile_region
from lambdas.reconcile.fleet import RunSummary, reconcile_fleet
from lambdas.reconcile.table import ReconcileTable
from lambdas.region_scores import RegionScoresTable
from lambdas.run_instances import services as run_instances_services
from lambdas.run_instances.instance_actions import describe_instances, terminate_instances
from lambdas.run_instances.launching import run_instances
from lambdas.run_instances.refusals import RefusalMemory
from lambdas.run_instances.services import Call
from lambdas.settings import Region, RunInstancesSettings
from tests.chaos.faults import Faults, FaultyTable
from tests.chaos.post import FaultyBus
from tests.tables import FLEET, REGION_SCORES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

    from lambdas.run_instances.descriptions import Result
    from tests.chaos.post import Post
    from tests.chaos.world_clock import WorldClock

_T = TypeVar("_T")

ACCOUNT: Final = "123456789012"
# What Lambda gives a call, less what answering takes.
CALL_S: Final = 27.0


class _Process:
    """What both functions have: a thread, a loop, a table client and a bus."""

    def __init__(
        self,
        dynamodb: DynamoDBClient,
        regions: Mapping[str, str],
        *,
        post: Post,
        clock: WorldClock,
    ) -> None:
        self.faults = Faults()
        self.clock = clock
        self.regions = tuple(Region(name=name, nats_url=url) for name, url in regions.items())
        table: Any = FaultyTable(dynamodb, self.faults)
        self.table: DynamoDBClient = table
        self.fleet = FleetTable(self.table, FLEET)
        self._bus = Bus({region.name: region for region in self.regions}, credentials=str)
        self.bus = FaultyBus(self._bus, self.faults, post)
        self._thread = ThreadPoolExecutor(1)
        self._runner = asyncio.Runner()

    async def run(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine to its end on the function's own loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._runner.run(make()))

    async def close(self) -> None:
        """End it: what it still had under way too."""

        def end() -> None:
            self._runner.run(self._bus.close())
            self._runner.close()

        await asyncio.get_running_loop().run_in_executor(self._thread, end)
        self._thread.shutdown()


class Function(_Process):
    """run_instances. regions: the NATS URL of each, by name."""

    def __init__(
        self,
        dynamodb: DynamoDBClient,
        regions: Mapping[str, str],
        *,
        post: Post,
        clock: WorldClock,
        accept_timeout_s: float,
    ) -> None:
        super().__init__(dynamodb, regions, post=post, clock=clock)
        self.services = run_instances_services.Services(
            settings=RunInstancesSettings(
                fleet_table=FLEET,
                region_scores_table=REGION_SCORES,
                regions=self.regions,
                default_region=self.regions[0].name,
                accept_timeout_s=accept_timeout_s,
            ),
            instance_types=ec2_catalogue(),
            fleet=self.fleet,
            scores=RegionScoresTable(self.table, REGION_SCORES),
            bus=self.bus,
            known_nodes=lambda region: self.fleet.seen_nodes(region, now_s=clock.now_s()),
            refusals=RefusalMemory(time.monotonic),
            now_s=clock.now_s,
            clock_s=time.monotonic,
            sleep=asyncio.sleep,
            random_hex=lambda digits: secrets.token_hex(digits // 2 + 1)[:digits],
        )

    def _call(self, region: str | None = None) -> Call:
        return Call(
            account_id=ACCOUNT,
            request_id="r",
            deadline_s=time.monotonic() + CALL_S,
            region=region,
        )

    async def launch(self, parameters: Mapping[str, object]) -> Result:
        """Call RunInstances. Raises EC2Error, or what has happened to the function."""
        return await self.run(lambda: run_instances(self.services, self._call(), parameters))

    async def describe(self) -> dict[str, str]:
        """Return the states of all instances, by id, as DescribeInstances shows them."""
        result: Any = await self.run(lambda: describe_instances(self.services, self._call(), {}))
        return {
            instance["InstanceId"]: instance["State"]["Name"]
            for reservation in result["Reservations"]
            for instance in reservation["Instances"]
        }

    async def terminate(self, instance_ids: Sequence[str]) -> Result:
        """Call TerminateInstances."""
        asked = {"InstanceIds": list(instance_ids)}
        return await self.run(lambda: terminate_instances(self.services, self._call(), asked))


class Reconciler(_Process):
    """The reconcile function."""

    async def reconcile(self) -> RunSummary:
        """Run once."""
        services = reconcile_region.Services(
            bus=self.bus,
            fleet=self.fleet,
            table=ReconcileTable(self.table, FLEET),
            now_s=self.clock.now_s,
            sleep=asyncio.sleep,
        )
        names = [region.name for region in self.regions]
        return await self.run(lambda: reconcile_fleet(services, names))
