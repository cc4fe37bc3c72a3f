"""A fleet's records in moto and its nodes scripted, for reconcile to hold against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from fleetcast.launch_history import account_partition
from lambdas.fleet_table import FleetTable
from lambdas.launch_table import Reservation
from lambdas.live_index import region_partition
from lambdas.reconcile.fleet import RunSummary, reconcile_fleet
from lambdas.reconcile.region import Services
from lambdas.reconcile.table import ReconcileTable
from lambdas.records import InstanceRecord
from tests.scripted_nodes import ACCOUNT, Node, ScriptedNodes, instance_id, launch_id, report
from tests.tables import FLEET

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from fleetcast.messages import InstanceState

US, EU = "us-east-1", "eu-west-1"
NOW_S = 1_700_000_000.0
MINUTE_S = 60.0


@dataclass
class World:
    """Two regions of nodes, the table, and the function that holds them against each other."""

    dynamodb: DynamoDBClient
    nodes: ScriptedNodes

    def __post_init__(self) -> None:
        self.fleet = FleetTable(self.dynamodb, FLEET)

    async def run(self) -> RunSummary:
        """Run once, and let a minute pass."""
        services = Services(
            bus=self.nodes,
            fleet=self.fleet,
            table=ReconcileTable(self.dynamodb, FLEET),
            now_s=self.nodes.clock_s,
            sleep=self.nodes.sleep,
        )
        summary = await reconcile_fleet(services, [*self.nodes.regions])
        self.nodes.now_s += MINUTE_S
        return summary

    def node(self, name: str) -> Node:
        return self.nodes.node(name)

    def begin(self, number: int, **changed: Any) -> InstanceRecord:  # noqa: ANN401 - what differs
        """Write a launch of one instance down, and ask for nothing."""
        record = InstanceRecord(
            account_id=ACCOUNT,
            reservation_id=launch_id(number),
            instance_id=instance_id(number),
            instance_type="t3.medium",
            image_id="ami-00000001",
            architecture="x86_64",
            launch_index=0,
            launched_at_s=self.nodes.now_s,
        )
        reservation = Reservation(
            account_id=ACCOUNT,
            reservation_id=launch_id(number),
            instance_type="t3.medium",
            launched_at_s=self.nodes.now_s,
            instance_ids=(record.instance_id,),
            state="placing",
            undecided_until_s=self.nodes.now_s + 25,
        )
        reservation = msgspec.structs.replace(reservation, **changed)
        self.fleet.launches.begin(reservation, [record], None, now_s=self.nodes.now_s)
        return record

    def place(
        self,
        number: int,
        node: str,
        *,
        region: str = US,
        attempt: int = 1,
        state: InstanceState = "running",
    ) -> None:
        """Write down that a launch's only instance is on a node, in this state."""
        record = self.begin(number)
        reservation = self.fleet.launches.read(ACCOUNT, record.reservation_id)
        assert reservation
        placed = msgspec.structs.replace(record, region=region, node=node, attempt=attempt)
        decided = msgspec.structs.replace(reservation, state="placed", region=region)
        self.fleet.launches.place(decided, [placed])
        if state != "pending":
            moved = msgspec.structs.replace(placed, state=state)
            assert self.fleet.change_state(placed, moved)

    def records(self) -> dict[str, InstanceRecord]:
        return {one.instance_id: one for one in self.fleet.instances(ACCOUNT)}

    def states(self) -> dict[str, str]:
        return {one: record.state for one, record in self.records().items()}

    def state(self, number: int) -> str | None:
        return self.states().get(instance_id(number))


def a_world(dynamodb: DynamoDBClient) -> World:
    regions = {US: {name: Node(name) for name in ("n1", "n2", "n3")}, EU: {"m1": Node("m1")}}
    return World(dynamodb, ScriptedNodes(regions, now_s=NOW_S))


def make_a_mess(world: World) -> None:
    """Put something in the way of every step."""
    world.place(1, "n1", state="pending")
    world.place(2, "n1", attempt=2)
    world.place(3, "n1", state="shutting-down")
    world.place(4, "n1")  # and it hasn't got it
    world.place(5, "n3")  # and it is silent
    world.place(6, "n2")  # and it was silent
    world.node("n1").hold(report(1), report(2, attempt=2), report(3))
    world.node("n2").hold(report(2), report(6), report(7), report(8))
    world.node("n3").silent = True
    world.begin(8)
    (record,) = [one for one in world.records().values() if one.node == "n2"]
    world.dynamodb.update_item(
        TableName=FLEET,
        Key={
            "pk": {"S": account_partition(ACCOUNT)},
            "sk": {"S": f"INSTANCE#{record.instance_id}"},
        },
        UpdateExpression="SET unreachable_since_s = :since",
        ExpressionAttributeValues={":since": {"N": "1"}},
    )
    world.dynamodb.put_item(
        TableName=FLEET,
        Item={
            "pk": {"S": region_partition(US)},
            "sk": {"S": "NODE#old"},
            "region": {"S": US},
            "node": {"S": "old"},
            "last_seen_s": {"N": "1"},
        },
    )


def assert_tidied(world: World) -> None:
    states = {number: world.state(number) for number in range(1, 9)}
    assert states == {
        1: "running",
        2: "running",
        3: "terminated",
        4: "terminated",
        5: "running",
        6: "running",
        7: None,
        8: "running",
    }
    records = world.records()
    assert records[instance_id(5)].unreachable_since_s is not None
    assert records[instance_id(6)].unreachable_since_s is None
    assert (records[instance_id(8)].region, records[instance_id(8)].node) == (US, "n2")
    assert world.node("n1").states() == {
        instance_id(1): "running",
        instance_id(2): "running",
        instance_id(3): "terminated",
    }
    assert world.node("n2").holds.keys() == {instance_id(6), instance_id(8)}
    assert {one.node for one in world.fleet.nodes(US)} == {"n1", "n2"}
