"""An owner of instances: calls the function's actions over tables in moto and scripted nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetcast.instance_types import ec2_catalogue
from lambdas.region_scores import RegionScoresTable
from lambdas.run_instances import handler
from lambdas.run_instances.refusals import RefusalMemory
from lambdas.run_instances.services import Call, Services
from lambdas.settings import Region, RunInstancesSettings
from tests.reconciled_world import EU, US
from tests.scripted_nodes import ACCOUNT, instance_id, report
from tests.tables import FLEET, REGION_SCORES

if TYPE_CHECKING:
    from fleetcast.messages import InstanceState
    from tests.reconciled_world import World


@dataclass
class Owner:
    """Calls actions in a world. region: the endpoint, or None for that of all regions."""

    world: World
    region: str | None = None
    account_id: str = ACCOUNT

    def __post_init__(self) -> None:
        nodes = self.world.nodes
        names = sorted(nodes.regions)
        self.services = Services(
            settings=RunInstancesSettings(
                fleet_table=FLEET,
                region_scores_table=REGION_SCORES,
                regions=tuple(Region(name=one, nats_url="nats://127.0.0.1:1") for one in names),
                default_region=names[0],
            ),
            instance_types=ec2_catalogue(),
            fleet=self.world.fleet,
            scores=RegionScoresTable(self.world.dynamodb, REGION_SCORES),
            bus=nodes,
            known_nodes=lambda region: nodes.regions[region],
            refusals=RefusalMemory(nodes.clock_s),
            now_s=nodes.clock_s,
            clock_s=nodes.clock_s,
            sleep=nodes.sleep,
            random_hex=lambda digits: "0" * digits,
        )

    async def call(self, action: str, **parameters: object) -> Any:  # noqa: ANN401 - results are JSON
        """Call an action as the handler does. Raises EC2Error."""
        nodes = self.world.nodes
        call = Call(
            account_id=self.account_id,
            request_id="r",
            deadline_s=nodes.clock_s() + 27,
            region=self.region,
        )
        return await handler.ACTIONS[action](self.services, call, parameters)

    async def name(self, action: str, *numbers: int, **parameters: object) -> Any:  # noqa: ANN401 - results are JSON
        """Call an action on the instances of these numbers."""
        names = [instance_id(number) for number in numbers]
        return await self.call(action, InstanceIds=names, **parameters)

    async def start(self, *numbers: int, **parameters: object) -> dict[int, tuple[str, str]]:
        """Start instances; return the states of each before and after."""
        return _changes((await self.name("StartInstances", *numbers, **parameters)).values())

    async def stop(self, *numbers: int, **parameters: object) -> dict[int, tuple[str, str]]:
        """Stop instances; return the states of each before and after."""
        return _changes((await self.name("StopInstances", *numbers, **parameters)).values())

    async def described(self) -> dict[str, Any]:
        """Return what DescribeInstances shows, by instance id."""
        answer = await self.call("DescribeInstances")
        return {
            instance["InstanceId"]: instance
            for reservation in answer["Reservations"]
            for instance in reservation["Instances"]
        }


def put(
    world: World,
    number: int,
    state: InstanceState,
    *,
    on: str = "n1",
    really: InstanceState | None = None,
) -> None:
    """Let a node hold an instance that is recorded in a state. really: what the node says."""
    region = EU if on in world.nodes.regions[EU] else US
    world.place(number, on, region=region, state=state)
    world.node(on).hold(report(number, state=really or state))


def _changes(answer: Any) -> dict[int, tuple[str, str]]:  # noqa: ANN401 - results are JSON
    (changes,) = answer
    return {
        int(change["InstanceId"].removeprefix("i-"), 16): (
            change["PreviousState"]["Name"],
            change["CurrentState"]["Name"],
        )
        for change in changes
    }
