"""What nodes say of their guests, as DescribeInstances shows it to their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.instance_owner import Owner, put
from tests.reconciled_world import World, a_world
from tests.scripted_nodes import instance_id, report
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.messages import InstanceState

_IP: Final = "169.254.12.34"
_MAC: Final = "02:3f:9a:00:17:c4"
_ADDRESSES: Final[dict[str, Any]] = {"private_ip_address": _IP, "mac_address": _MAC}


@pytest.fixture
def world() -> Iterator[World]:
    with tables(FLEET, REGION_SCORES) as dynamodb:
        yield a_world(dynamodb)


async def _shown(world: World) -> Any:  # noqa: ANN401 - an instance as EC2 shows it
    return (await Owner(world).described())[instance_id(1)]


def _network(shown: Any) -> tuple[str | None, list[str]]:  # noqa: ANN401 - an instance
    """Return the address of an instance, and the MAC addresses of its interfaces."""
    return shown["PrivateIpAddress"], [one["MacAddress"] for one in shown["NetworkInterfaces"]]


async def test_an_instance_shows_its_addresses_once_it_runs(world: World) -> None:
    put(world, 1, "pending")
    world.node("n1").hold(report(1, state="pending", **_ADDRESSES))
    assert _network(await _shown(world)) == (None, [])
    world.node("n1").hold(report(1, **_ADDRESSES))
    assert _network(await _shown(world)) == (_IP, [_MAC])
    # An older agent, after a downgrade, says nothing of them.
    world.node("n1").hold(report(1, state="stopped"))
    await world.run()
    assert _network(await _shown(world)) == (_IP, [_MAC])


async def test_reconcile_records_the_addresses_too(world: World) -> None:
    put(world, 1, "pending")
    world.node("n1").hold(report(1, **_ADDRESSES))
    await world.run()
    (record,) = world.records().values()
    assert (record.private_ip_address, record.mac_address) == (_IP, _MAC)


async def test_an_instance_whose_network_gives_its_address_shows_none(world: World) -> None:
    put(world, 1, "pending")
    world.node("n1").hold(report(1, mac_address=_MAC))
    assert _network(await _shown(world)) == (None, [_MAC])


async def test_an_instance_that_has_ended_has_no_address(world: World) -> None:
    put(world, 1, "pending")
    world.node("n1").hold(report(1, **_ADDRESSES))
    await _shown(world)
    await Owner(world).name("TerminateInstances", 1)
    shown = await _shown(world)
    assert shown["State"]["Name"] == "terminated"
    assert _network(shown) == (None, [])


@pytest.mark.parametrize(
    ("state", "code", "message"),
    [
        ("stopped", "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
        ("terminated", "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
        ("stopped", "Server.InternalError", "crashed 4 times in 10 minutes: kernel panic"),
    ],
)
async def test_why_a_guest_has_ended_by_itself_is_shown(
    world: World, state: InstanceState, code: str, message: str
) -> None:
    put(world, 1, "running")
    ended = report(1, state=state, state_reason_code=code, state_reason_message=message)
    world.node("n1").hold(ended)
    await world.run()
    shown = await _shown(world)
    assert shown["State"]["Name"] == state
    assert shown["StateReason"] == {"Code": code, "Message": f"{code}: {message}"}
    assert shown["StateTransitionReason"] == f"{code}: {message}"
