"""One small world under attack: tables in moto, real NATS servers, real agents, real functions.

A case starts what it needs, does its worst, and ends with `settle`: time is moved on, reconcile
runs twice, and then the census must show that every invariant holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from unittest import mock

import msgspec
import nats
import nats.errors
from botocore.exceptions import ClientError

from fleetcast import messages
from fleetcast.capacity import Resources
from fleetcast.errors import EC2Error, InsufficientInstanceCapacity
from fleetcast.launch_history import RESERVATION_PREFIX
from fleetcast.messages import InstanceReport, InstancesReply, RegionRequest
from fleetcast.subjects import RegionAction, region_subject
from lambdas.attribute_values import decode_item
from lambdas.fleet_table import FleetTable
from lambdas.launch_table import Reservation
from lambdas.reconcile import nodes as reconcile_nodes
from tests.chaos.census import Census, read_guests, read_journal
from tests.chaos.faults import FunctionDied
from tests.chaos.functions import ACCOUNT, Function, Reconciler
from tests.chaos.nodes import Node, NodesProcess
from tests.chaos.post import Post
from tests.chaos.quick_tables import quick_tables
from tests.chaos.world_clock import WorldClock
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.tables import FLEET, create_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from pathlib import Path

    from mypy_boto3_dynamodb import DynamoDBClient
    from nats.aio.client import Client

    from lambdas.reconcile.fleet import RunSummary

REGION: Final = "us-east-1"
OTHER_REGION: Final = "eu-west-1"
MINUTE_S: Final = 60.0
# So late is a launch surely left by its function, and nothing is held for it any more.
LEFT_S: Final = 45.0
# Any t3.medium takes this.
SLOT: Final = Resources(vcpu=2, memory_mib=4_096)


class Count(NamedTuple):
    """MinCount and MaxCount."""

    least: int
    most: int


ONE: Final = Count(1, 1)
# The ids that a caller was told, or why it was told none.
Answer: TypeAlias = frozenset[str] | EC2Error | ClientError | FunctionDied


@dataclass
class Tally:
    """What callers were told. accepted: the ids, of each request that got some."""

    requests: int = 0
    refused: int = 0
    unknown: int = 0
    accepted: list[frozenset[str]] = field(default_factory=list)
    terminated: set[str] = field(default_factory=set)

    @property
    def acknowledged(self) -> frozenset[str]:
        return frozenset[str]().union(*self.accepted) - self.terminated


@dataclass
class World:
    """What a case works with.

    accept_timeout_s: how long the functions wait for an acceptance. lines: what the cases tell.
    """

    folder: Path
    dynamodb: DynamoDBClient
    lines: list[str]
    accept_timeout_s: float = 1.0
    post: Post = field(default_factory=Post)
    tally: Tally = field(default_factory=Tally)
    regions: dict[str, str] = field(default_factory=dict)
    servers: dict[str, NatsProcess] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    processes: list[NodesProcess] = field(default_factory=list)
    _closing: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _outside: dict[str, Client] = field(default_factory=dict)
    _onlooker: Function | None = None

    def __post_init__(self) -> None:
        self.clock = WorldClock(self.folder / "clock")
        self.fleet = FleetTable(self.dynamodb, FLEET)

    # --- what there is ---------------------------------------------------------------------

    async def start_region(self, name: str = REGION) -> NatsProcess:
        """Start a region's NATS server, one that is killed and started again as the case likes."""
        folder = self.folder / f"nats-{name}"
        folder.mkdir()
        server = NatsProcess(folder)
        await self._closing.enter_async_context(server)
        self.servers[name] = server
        self.regions[name] = server.url
        return server

    def share_server(self, *names: str) -> None:
        """Add regions whose NATS is that of the first one: a test's cases then go side by side."""
        url = next(iter(self.regions.values()))
        self.regions |= dict.fromkeys(names, url)

    async def start_nodes(
        self,
        *names: str,
        slots: int = 4,
        region: str = REGION,
        urls: Sequence[str] = (),
        **attack: Any,  # noqa: ANN401 - as Attack has it
    ) -> NodesProcess:
        """Start the agents of some nodes in one process. urls: of the NATS of each in turn."""
        where = urls or [self.regions[region]]
        nodes = [
            Node(
                name=name,
                region=region,
                url=where[at % len(where)],
                state_dir=self.folder / name,
                total=Resources(vcpu=SLOT.vcpu * slots, memory_mib=SLOT.memory_mib * slots),
            )
            for at, name in enumerate(names)
        ]
        process = NodesProcess(
            nodes, clock=self.folder / "clock", log=self.folder / f"{names[0]}.log"
        )
        self._closing.push_async_callback(process.kill)
        self.processes.append(process)
        self.nodes |= {node.name: node for node in nodes}
        await process.start(**attack)
        return process

    async def function(self, region: str | None = None, *, post: Post | None = None) -> Function:
        """Return one more run_instances. region: the only one that it knows of."""
        function = Function(
            self.dynamodb,
            {region: self.regions[region]} if region else self.regions,
            post=post or self.post,
            clock=self.clock,
            accept_timeout_s=self.accept_timeout_s,
        )
        self._closing.push_async_callback(function.close)
        return function

    async def reconciler(self) -> Reconciler:
        """Return one more reconcile."""
        reconciler = Reconciler(self.dynamodb, self.regions, post=Post(), clock=self.clock)
        self._closing.push_async_callback(reconciler.close)
        return reconciler

    async def outside(self) -> dict[str, Client]:
        """Return a connection of the test's own to each region."""
        for region, url in self.regions.items():
            client = self._outside.get(region)
            if client is None or not client.is_connected:
                client = await nats.connect(url, max_reconnect_attempts=1)
                self._closing.push_async_callback(client.close)
                self._outside[region] = client
        return self._outside

    def forget_the_table(self) -> None:
        """Begin with an empty table: what was in it is of no use to the next launch."""
        self.dynamodb.delete_table(TableName=FLEET)
        create_table(self.dynamodb, FLEET)
        self.tally.accepted.clear()

    # --- what is done ----------------------------------------------------------------------

    async def launch(
        self,
        function: Function,
        count: Count = ONE,
        *,
        token: str | None = None,
        instance_type: str = "t3.medium",
        zone: str | None = None,
    ) -> Answer:
        """Launch; return the ids, or why there are none. Tells the tally of it.

        What was launched must be described at once.
        """
        parameters: dict[str, object] = {
            "ImageId": "ami-00000001",
            "InstanceType": instance_type,
            "MinCount": count.least,
            "MaxCount": count.most,
        }
        if token is not None:
            parameters["ClientToken"] = token
        if zone is not None:
            parameters["Placement"] = {"AvailabilityZone": zone}
        self.tally.requests += 1
        try:
            result: Any = await function.launch(parameters)
        except InsufficientInstanceCapacity as refusal:
            self.tally.refused += 1
            return refusal
        except (EC2Error, ClientError, FunctionDied) as problem:
            self.tally.unknown += 1
            return problem
        ids = frozenset(one["InstanceId"] for one in result["Instances"])
        assert count.least <= len(ids) <= count.most
        self.tally.accepted.append(ids)
        assert ids <= (await self.described()).keys()  # I10
        return ids

    async def launched(
        self, function: Function, count: Count = ONE, *, token: str | None = None
    ) -> frozenset[str]:
        """Launch, and have it succeed."""
        answer = await self.launch(function, count, token=token)
        assert isinstance(answer, frozenset), answer
        return answer

    async def described(self) -> dict[str, str]:
        """Return the states of all instances as another client sees them now."""
        if self._onlooker is None:
            self._onlooker = await self.function()
        return await self._onlooker.describe()

    async def terminate(self, instance_ids: Collection[str]) -> None:
        """Terminate instances as their owner does."""
        self.tally.terminated |= set(instance_ids)
        await (await self.function()).terminate(sorted(instance_ids))

    async def know_the_nodes(self) -> RunSummary:
        """Run reconcile until all nodes that run are known."""
        reconciler = await self.reconciler()

        async def known() -> tuple[RunSummary, set[str]]:
            summary = await reconciler.reconcile()
            return summary, {
                node.node for region in self.regions for node in self.fleet.nodes(region)
            }

        # The first time nobody knows for how many answers to wait.
        with mock.patch.object(reconcile_nodes, "_INVENTORY_TIMEOUT_S", 0.25):
            summary, _ = await eventually(known, lambda found: found[1] >= self._running_nodes())
        return summary

    def _running_nodes(self) -> set[str]:
        return {
            node.name for process in self.processes if process.is_alive for node in process.nodes
        }

    # --- what has come of it ---------------------------------------------------------------

    async def settle(self, case: str, *, false_refusals: int = 0) -> Census:
        """Move time on, reconcile twice, take the census and check it; tell of the case."""
        reconciler = await self.reconciler()
        for _ in range(2):
            await self.quiet()
            self.clock.move(MINUTE_S)
            summary = await reconciler.reconcile()
            assert not summary.errors, summary.errors
        await self.quiet()
        census = await self.census()
        self.tell(case, census, false_refusals=false_refusals)
        census.check()
        return census

    def tell(
        self,
        case: str,
        census: Census,
        *,
        strays: Collection[str] | None = None,
        false_refusals: int = 0,
    ) -> None:
        """Add the case's line. strays: if it isn't records that tell."""
        tally = self.tally
        figures = {
            "requests": tally.requests,
            "accepted": len(tally.accepted),
            "refused": tally.refused,
            "unknown": tally.unknown,
            "false refusals": false_refusals,
            "duplicates": len(census.duplicates),
            "strays": len(census.strays if strays is None else strays),
        }
        told = ", ".join(f"{name} {figure}" for name, figure in figures.items())
        self.lines.append(f"{case}: {told}")

    async def quiet(self) -> None:
        """Wait until no guest of a node that answers is on its way to another state."""

        async def is_quiet() -> bool:
            return not any(
                report.state in {"stopping", "shutting-down"}
                or (report.state == "pending" and report.held is not True)
                for inventory in (await self.inventories()).values()
                for report in inventory.values()
            )

        await eventually(is_quiet)

    async def inventories(self) -> dict[str, dict[str, InstanceReport]]:
        """Ask all nodes; return what those that run say. Waits until all of them have answered."""
        alive = self._running_nodes()

        async def heard() -> dict[str, dict[str, InstanceReport]]:
            found: dict[str, dict[str, InstanceReport]] = {}
            for region in self.regions:
                expected = sum(self.nodes[name].region == region for name in alive)
                for reply in await self._inventories_of(region, expected):
                    found[reply.node] = {one.instance_id: one for one in reply.instances}
            return found

        return await eventually(heard, lambda found: found.keys() >= alive)

    async def _inventories_of(self, region: str, expected: int) -> list[InstancesReply]:
        replies: list[InstancesReply] = []
        try:
            client = (await self.outside())[region]
            inbox = await client.subscribe(client.new_inbox())
            await client.publish(
                region_subject(region, RegionAction.INVENTORY),
                messages.encode(RegionRequest()),
                reply=inbox.subject,
            )
            with contextlib.suppress(TimeoutError):
                while len(replies) < expected:
                    answer = await inbox.next_msg(timeout=2)
                    if answer.data:  # nobody there is told by an empty one
                        replies.append(messages.decode(answer.data, InstancesReply))
            await inbox.unsubscribe()
        except (nats.errors.Error, OSError):
            return replies
        return replies

    async def census(self) -> Census:
        """Take the census of all nodes."""
        return Census(
            nodes=self.nodes,
            records={one.instance_id: one for one in self.fleet.instances(ACCOUNT)},
            reservations=self.reservations(),
            inventories=await self.inventories(),
            journals={name: read_journal(node) for name, node in self.nodes.items()},
            guests={name: read_guests(node) for name, node in self.nodes.items()},
            acknowledged=self.tally.acknowledged,
        )

    def reservations(self) -> list[Reservation]:
        """Return every launch that the table knows of."""
        return [
            msgspec.convert(item, Reservation)
            for page in self.dynamodb.get_paginator("scan").paginate(TableName=FLEET)
            for item in map(decode_item, page["Items"])
            if str(item["sk"]).startswith(RESERVATION_PREFIX)
        ]

    async def hang_up(self) -> None:
        """End everything that is connected to a server which the world hasn't started."""
        await self._closing.aclose()

    async def close(self) -> None:
        """End everything."""
        await self._closing.aclose()


@contextlib.asynccontextmanager
async def a_world(folder: Path, lines: list[str]) -> AsyncIterator[World]:
    """Make a world with tables and nothing else."""
    with (
        # Reconcile waits that long for nodes that nobody knows of: here all are known.
        mock.patch.object(reconcile_nodes, "_CAPACITY_WAIT_S", 0.15),
        quick_tables() as dynamodb,
    ):
        world = World(folder, dynamodb, lines)
        try:
            yield world
        finally:
            await world.close()


async def side_by_side(*launches: Any) -> list[Any]:  # noqa: ANN401 - whatever they return
    """Run these at the same time."""
    return list(await asyncio.gather(*launches))
