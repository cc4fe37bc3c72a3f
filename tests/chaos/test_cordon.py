"""Nodes that are cordoned while a crowd launches on them; guests that end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast import messages
from fleetcast.subjects import NodeAction, node_subject
from tests.chaos.census import read_guests
from tests.chaos.functions import ACCOUNT
from tests.chaos.walks import walker
from tests.chaos.world import REGION, side_by_side
from tests.eventually import eventually

if TYPE_CHECKING:
    from lambdas.records import InstanceRecord
    from tests.chaos.world import World

NODES = [f"n{number}" for number in range(10)]
CORDONED = NODES[:3]
SLOTS = 20


async def cordon(world: World, node: str) -> set[str]:
    """Cordon a node; return what it had when that was confirmed."""
    client = (await world.outside())[REGION]
    answer = await client.request(
        node_subject(REGION, node, NodeAction.CORDON),
        messages.encode(messages.CordonRequest()),
        timeout=10,
    )
    reply = messages.decode(answer.data, messages.CordonReply)
    assert (reply.state, reply.problem) == ("cordoned", "")
    return {report.instance_id for report in reply.instances}


@pytest.mark.parametrize(("before", "at_once", "after"), [(30, 80, 20), (30, 120, 90)])
async def test_nodes_that_are_cordoned_in_a_storm_take_no_launch_any_more_and_refuse_nobody(
    world: World, before: int, at_once: int, after: int
) -> None:
    """First with room for all on the other nodes, then with too little."""
    await world.start_region()
    process = await world.start_nodes(*NODES, slots=SLOTS)
    await world.outside()
    async with walker(world, REGION) as storm:
        await side_by_side(*map(storm.launch, range(before)))
        _, *had = await side_by_side(
            side_by_side(*map(storm.launch, range(before, before + at_once))),
            *(cordon(world, node) for node in CORDONED),
        )
        requests = before + at_once + after
        await side_by_side(*map(storm.launch, range(before + at_once, requests)))
    await world.quiet()
    census = await world.census()
    census.check_nodes()
    for node, instance_ids in zip(CORDONED, had, strict=True):
        assert census.holders_on(node) == instance_ids
    assert census.holders() == {one: {at.node} for one, at in storm.placed.items()}
    on_the_others = sum(len(census.holders_on(node)) for node in NODES if node not in CORDONED)
    room = SLOTS * (len(NODES) - len(CORDONED))
    false_refusals = len(storm.refused_types) if on_the_others < room else 0
    name = f"{len(CORDONED)} of {len(NODES)} nodes cordoned in a storm of {requests}"
    world.tell(name, census, strays=(), false_refusals=false_refusals)
    assert not false_refusals
    assert not world.tally.unknown
    # They stay so when their agents die.
    await process.kill()
    await process.start()
    async with walker(world, REGION) as storm:
        await side_by_side(*map(storm.launch, range(requests, requests + room)))
    census = await world.census()
    for node, instance_ids in zip(CORDONED, had, strict=True):
        assert census.holders_on(node) == instance_ids
    assert all(len(census.holders_on(node)) == SLOTS for node in NODES if node not in CORDONED)


def record_of(world: World, instance_id: str) -> InstanceRecord:
    (record,) = world.fleet.instances_by_id(ACCOUNT, [instance_id])
    return record


async def test_records_follow_what_guests_and_the_operators_of_nodes_do(world: World) -> None:
    await world.start_region()
    await world.start_nodes("n1", "n2", slots=4)
    await world.know_the_nodes()
    function = await world.function()
    (off,) = await world.launched(function)
    (crashed,) = await world.launched(function)
    await world.quiet()

    async def runs(instance_id: str) -> bool:
        return instance_id in read_guests(world.nodes[record_of(world, instance_id).node or ""])

    async def ends(instance_id: str, how: str) -> None:
        node = world.nodes[record_of(world, instance_id).node or ""]
        (node.guests / "ends").write_text(f"{instance_id} {how}\n")
        await eventually(lambda: runs(instance_id), lambda is_up: not is_up)

    await ends(off, "powered-off")
    await ends(crashed, "crashed")
    await cordon(world, "n1")
    await eventually(lambda: runs(crashed))
    census = await world.settle("a guest that powers itself off, and one that crashes")
    stopped, restarted = census.records[off], census.records[crashed]
    assert stopped.state == "stopped"
    assert stopped.state_reason_code == "Client.InstanceInitiatedShutdown"
    assert restarted.state == "running"
    closed = {node.node: node.closed for node in world.fleet.nodes(REGION)}
    assert closed == {"n1": "cordoned", "n2": None}
