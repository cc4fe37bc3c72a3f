"""Every subject has somebody who asks and somebody who answers, in what ships.

Nothing here builds a subject: the function, the local stack and the documentation ask, a real
agent answers, and a listener on the server notes what was asked. A subject that only one side
knows would look like a region without room.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from fleetcast import messages
from fleetcast.agent.command import main as fleetcast_agent
from fleetcast.local.inventory import held_instances
from fleetcast.subjects import (
    NodeAction,
    RegionAction,
    launch_subject,
    node_subject,
    region_subject,
)
from tests.ec2_endpoint import ec2_client
from tests.eventually import eventually
from tests.settled_client import settled
from tests.small_fleet import TYPE, SmallFleet, small_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_ec2 import EC2Client
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from tests.agent_process import AgentProcess

REGION: Final = "us-east-1"
ZONE: Final = "us-east-1a"
NODE: Final = "n1"
EVERY_SUBJECT: Final = {
    launch_subject(REGION, TYPE),
    launch_subject(REGION, TYPE, ZONE),
    *(node_subject(REGION, NODE, action) for action in NodeAction),
    *(region_subject(REGION, action) for action in RegionAction),
}
_DEBUGGING: Final = Path(__file__).parents[2] / "docs" / "debugging.md"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path, monkeypatch) as made:
        made.start_region(REGION)
        made.start_agent(REGION, NODE, slots=4)
        made.start_function(REGION)
        yield made


def test_every_subject_is_asked_and_answered_by_what_ships(fleet: SmallFleet) -> None:
    asked: set[str] = set()
    listener = fleet.outside.run(_listen(fleet, asked))
    try:
        _ask_as_a_client()
        _launch_more_than_fits()
        assert fleet.outside.run(held_instances(fleet.servers[REGION].url, REGION, nodes=1))
        fleet.outside.run(_ask_as_an_operator(listener))
        _ask_as_the_nodes_operator(fleet.agents[NODE])
        fleet.outside.run(_all_heard(asked))
    finally:
        fleet.outside.run(listener.close())
    assert asked == EVERY_SUBJECT


def test_the_agent_listens_to_every_subject(fleet: SmallFleet) -> None:
    name = f"fleetcast-agent {REGION} {NODE}"
    subscriptions = set(fleet.outside.run(fleet.servers[REGION].subscriptions(name)))
    for subject in EVERY_SUBJECT:
        with_wildcard = f"{subject.rpartition('.')[0]}.*"
        assert {subject, with_wildcard} & subscriptions, subject


async def _listen(fleet: SmallFleet, asked: set[str]) -> Client:
    async def note(message: Msg) -> None:
        asked.add(message.subject)

    listener = await nats.connect(fleet.servers[REGION].url)
    await listener.subscribe("ec2.>", cb=note)
    await settled(listener)
    return listener


async def _all_heard(asked: set[str]) -> None:
    async def heard() -> set[str]:
        return set(asked)

    await eventually(heard, lambda subjects: subjects >= EVERY_SUBJECT)


def _ask_as_a_client() -> None:
    """Call all actions; each fails unless the agent answers."""
    client = ec2_client()
    (one,) = _launch(client, Placement={"AvailabilityZone": ZONE})
    _await_state(client, "running", one)
    client.reboot_instances(InstanceIds=[one])
    client.get_console_output(InstanceId=one)
    client.stop_instances(InstanceIds=[one])
    _await_state(client, "stopped", one)
    client.start_instances(InstanceIds=[one])
    client.describe_instance_types(InstanceTypes=[TYPE])
    client.terminate_instances(InstanceIds=[one])
    # Those stay, for the inventory.
    client.describe_instances(InstanceIds=_launch(client, count=2))


def _launch_more_than_fits() -> None:
    """Have a launch look for what it gets no answer about, and give up what it got."""
    # To the server the listener is somebody who might have room.
    with pytest.raises(ClientError, match="ServiceUnavailable"):
        _launch(ec2_client(), count=5)


def _launch(client: EC2Client, *, count: int = 1, **how: Any) -> list[str]:  # noqa: ANN401 - botocore's parameters
    launched = client.run_instances(
        ImageId="ami-00000001", InstanceType=TYPE, MinCount=count, MaxCount=count, **how
    )
    return [instance["InstanceId"] for instance in launched["Instances"]]


def _await_state(client: EC2Client, state: str, name: str) -> None:
    waiter: Any = client.get_waiter(f"instance_{state}")  # type: ignore[call-overload] # not a literal
    waiter.config.delay = 0.05
    waiter.wait(InstanceIds=[name], WaiterConfig={"MaxAttempts": 300})


async def _ask_as_an_operator(connection: Client) -> None:
    """Ask what docs/debugging.md tells an operator to ask."""
    command = re.search(r"nats request (\S+) '(.+?)'", _DEBUGGING.read_text(encoding="utf-8"))
    assert command
    subject, payload = command[1].replace("REGION", REGION), command[2].encode()
    inbox = connection.new_inbox()
    answers = await connection.subscribe(inbox)
    await connection.publish(subject, payload, reply=inbox)
    answer = await answers.next_msg(timeout=5)
    assert messages.decode(answer.data, messages.CapacityReply).node == NODE


def _ask_as_the_nodes_operator(agent: AgentProcess) -> None:
    for command in (["cordon"], ["drain", "--stop"], ["uncordon"]):
        asked = CliRunner().invoke(fleetcast_agent, [*command, "--config", str(agent.config)])
        assert asked.exit_code == 0, asked.output
