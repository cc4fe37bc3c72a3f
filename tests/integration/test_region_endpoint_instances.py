"""At a region's own endpoint there are only the instances of that region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.errors import InvalidInstanceIDNotFound
from tests.instance_owner import Owner, put
from tests.reconciled_world import EU, World, a_world
from tests.scripted_nodes import instance_id
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

ACTIONS = (
    "DescribeInstances",
    "RebootInstances",
    "StartInstances",
    "StopInstances",
    "TerminateInstances",
)


@pytest.fixture
def world() -> Iterator[World]:
    with tables(FLEET, REGION_SCORES) as dynamodb:
        yield a_world(dynamodb)


async def test_a_regions_endpoint_sees_only_its_own_instances(world: World) -> None:
    put(world, 1, "running")
    put(world, 2, "running", on="m1")
    world.begin(3)
    there = Owner(world, region=EU)
    assert list(await there.described()) == [instance_id(2)]
    for action in ACTIONS:
        for number in (1, 3):
            with pytest.raises(InvalidInstanceIDNotFound):
                await there.name(action, 2, number)
    with pytest.raises(InvalidInstanceIDNotFound):
        await there.call("GetConsoleOutput", InstanceId=instance_id(1))
    assert world.nodes.orders == []
    assert await there.stop(2) == {2: ("running", "stopped")}
