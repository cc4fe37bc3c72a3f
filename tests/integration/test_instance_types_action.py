"""Which types are served is what all nodes say together, and what silent ones serve is in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fleetcast.errors import (
    DryRunOperation,
    InvalidInstanceType,
    InvalidParameterValue,
    ServiceUnavailable,
)
from tests.captured_logs import captured_logs
from tests.instance_owner import Owner
from tests.reconciled_world import EU, US, World, a_world
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def world() -> Iterator[World]:
    with tables(FLEET, REGION_SCORES) as dynamodb:
        made = a_world(dynamodb)
        made.node("n2").serves = ("t3.medium", "t3.large")
        made.node("m1").serves = ("c5.large",)
        made.node("m1").room = {"c5.large": 1}
        yield made


async def listed(owner: Owner, *names: str, **parameters: object) -> list[str]:
    answer: Any = await owner.call(
        "DescribeInstanceTypes", **({"InstanceTypes": names} if names else {}), **parameters
    )
    return [one["InstanceType"] for one in answer["InstanceTypes"]]


async def test_the_types_of_all_nodes_of_all_regions_are_listed_once(world: World) -> None:
    assert await listed(Owner(world)) == ["c5.large", "t3.large", "t3.medium"]


async def test_a_regions_endpoint_lists_what_its_nodes_serve(world: World) -> None:
    assert await listed(Owner(world, region=EU)) == ["c5.large"]
    assert await listed(Owner(world, region=US)) == ["t3.large", "t3.medium"]
    with pytest.raises(InvalidInstanceType):
        await listed(Owner(world, region=US), "c5.large")


async def test_a_type_has_room_if_any_node_has_room_for_it(world: World) -> None:
    for name in ("n1", "n2"):
        world.node(name).room = {}
    has_room = [{"Name": "fleetcast:has-room", "Values": ["true"]}]
    assert await listed(Owner(world), Filters=has_room) == ["c5.large", "t3.medium"]
    has_none = [{"Name": "fleetcast:has-room", "Values": ["false"]}]
    assert await listed(Owner(world), Filters=has_none) == ["t3.large"]


async def test_types_that_nobody_serves_are_refused_in_ec2s_words(world: World) -> None:
    with pytest.raises(InvalidInstanceType) as error:
        await listed(Owner(world), "t3.medium", "m5.large", "no.such")
    assert error.value.message == "The following supplied instance types do not exist: [no.such]"
    with pytest.raises(InvalidInstanceType) as error:
        await listed(Owner(world), "t3.medium", "m5.large", "m5.large", "m5.xlarge")
    assert error.value.message == (
        "The following supplied instance types do not exist: [m5.large, m5.xlarge]"
    )


async def test_a_region_that_cannot_be_heard_is_missing_and_logged(world: World) -> None:
    world.nodes.cut_off.add(EU)
    with captured_logs("lambdas") as logs:
        assert await listed(Owner(world)) == ["t3.large", "t3.medium"]
    assert logs.fields("region did not answer")[0]["region"] == EU


@pytest.mark.parametrize("how", ["silent", "garbled"])
async def test_a_type_that_a_silent_node_may_serve_is_not_said_not_to_exist(
    world: World, how: str
) -> None:
    setattr(world.node("n2"), how, True)
    with pytest.raises(
        ServiceUnavailable, match=r"t3\.large: no answer from nodes n2 in us-east-1"
    ):
        await listed(Owner(world), "t3.large")
    assert await listed(Owner(world), "t3.medium") == ["t3.medium"]
    assert await listed(Owner(world)) == ["c5.large", "t3.medium"]
    with pytest.raises(InvalidInstanceType):
        await listed(Owner(world), "no.such")


async def test_a_type_that_the_functions_catalogue_lacks_is_not_listed(world: World) -> None:
    world.node("n1").serves = ("t3.medium", "new.large")
    assert "new.large" not in await listed(Owner(world))


async def test_a_region_without_nodes_serves_nothing(world: World) -> None:
    world.nodes.regions[EU].clear()
    with pytest.raises(InvalidInstanceType):
        await listed(Owner(world), "c5.large")


async def test_what_is_wrong_with_a_request_is_told_before_anybody_is_asked(world: World) -> None:
    with pytest.raises(InvalidParameterValue):
        await listed(Owner(world), MaxResults=1_000)
    with pytest.raises(InvalidInstanceType):
        await listed(Owner(world), "no.such")
    assert world.nodes.gathers == []


async def test_a_dry_run_says_that_it_would_work(world: World) -> None:
    with pytest.raises(DryRunOperation):
        await listed(Owner(world), DryRun=True)
