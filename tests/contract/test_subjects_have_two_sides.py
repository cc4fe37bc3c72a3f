"""Every subject has somebody who asks and somebody who answers, in what ships.

Nothing here builds a subject: the function, the local stack and the documentation ask, a real
agent answers, and a listener on the server notes what was asked. A subject that only one side
knows would look like a region without room.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nats
import pytest

from fleetcast import messages
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
from tests.small_fleet import TYPE, SmallFleet, small_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.client import Client
    from nats.aio.msg import Msg

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
        assert fleet.outside.run(held_instances(fleet.servers[REGION].url, REGION, nodes=1))
        fleet.outside.run(_ask_as_an_operator(listener))
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
    await listener.flush()
    await listener.flush()
    return listener


async def _all_heard(asked: set[str]) -> None:
    async def heard() -> set[str]:
        return set(asked)

    await eventually(heard, lambda subjects: subjects >= EVERY_SUBJECT)


def _ask_as_a_client() -> None:
    client = ec2_client()
    launched = [
        client.run_instances(  # fails unless the agent answers
            ImageId="ami-00000001",
            InstanceType=TYPE,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": zone} if zone else {},
        )["Instances"][0]["InstanceId"]
        for zone in (None, ZONE)
    ]
    client.describe_instances(InstanceIds=launched)
    # One stays, for the inventory.
    client.terminate_instances(InstanceIds=launched[:1])


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
