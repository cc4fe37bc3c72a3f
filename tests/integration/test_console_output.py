"""What a console shows, and that silence is no empty console."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.errors import DryRunOperation, ServiceUnavailable
from tests.instance_owner import Owner, put
from tests.reconciled_world import World, a_world
from tests.scripted_nodes import CONSOLE_WRITTEN_AT_MS, instance_id
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world() -> Iterator[World]:
    with tables(FLEET, REGION_SCORES) as dynamodb:
        yield a_world(dynamodb)


@pytest.fixture
def owner(world: World) -> Owner:
    return Owner(world)


async def test_what_is_on_the_console_is_returned_as_the_node_has_it(
    world: World, owner: Owner
) -> None:
    put(world, 1, "running")
    world.node("n1").consoles[instance_id(1)] = "aGVsbG8="
    answer = await owner.call("GetConsoleOutput", InstanceId=instance_id(1), Latest=True)
    assert (answer["InstanceId"], answer["Output"]) == (instance_id(1), "aGVsbG8=")
    assert answer["Timestamp"].timestamp() * 1000 == CONSOLE_WRITTEN_AT_MS


async def test_without_output_the_console_is_empty(world: World, owner: Owner) -> None:
    put(world, 1, "pending")
    world.place(2, "n1")  # the node doesn't hold it
    world.begin(3)  # nobody does
    for number in (1, 2, 3):
        answer = await owner.call("GetConsoleOutput", InstanceId=instance_id(number))
        assert answer["Output"] == ""


@pytest.mark.parametrize("how", ["silent", "garbled"])
async def test_a_console_that_cannot_be_had_now_may_be_asked_for_again(
    world: World, owner: Owner, how: str
) -> None:
    put(world, 1, "running")
    setattr(world.node("n1"), how, True)
    with pytest.raises(ServiceUnavailable, match="node n1 in us-east-1"):
        await owner.call("GetConsoleOutput", InstanceId=instance_id(1))


async def test_a_dry_run_asks_for_no_console(world: World, owner: Owner) -> None:
    put(world, 1, "running")
    with pytest.raises(DryRunOperation):
        await owner.call("GetConsoleOutput", InstanceId=instance_id(1), DryRun=True)
    assert world.nodes.orders == []
