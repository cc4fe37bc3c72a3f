"""What a driver refuses is answered as it says, and what is promised stays promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fleetcast import messages
from fleetcast.agent.drivers import Addresses, ClientFault, NodeFault
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.subjects import RegionAction, region_subject
from tests.agent_parts import (
    NOW_MS,
    Delivered,
    UnitNode,
    a_launch,
    instance_id,
    launch_headers,
    launch_request,
    unit_node,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.instance_types import InstanceType


class _PickyDriver(SimulatedDriver):
    """Refuses launches with `fault`; its guests have addresses."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, now_s=lambda: NOW_MS / 1000)
        self.fault: ClientFault | NodeFault | None = None
        self.checked: list[str] = []

    def check(self, request: messages.LaunchRequest, instance_type: InstanceType) -> None:
        self.checked.append(f"{request.image_id} on {instance_type.name}")
        if self.fault:
            raise self.fault

    def addresses(self, instance_id: str) -> Addresses:  # type: ignore[override] # these have some
        return Addresses(private_ip="169.254.1.2", mac=f"02:00:00:00:00:{instance_id[-2:]}")


def _rejection(request: Delivered) -> messages.Rejected:
    reply = request.launch_reply()
    assert isinstance(reply, messages.Rejected), reply
    return reply


async def test_what_no_node_could_boot_is_the_clients_fault(tmp_path: Path) -> None:
    driver = _PickyDriver(tmp_path / "guests")
    driver.fault = ClientFault("InvalidKeyPair.NotFound", "The key pair 'x' does not exist")
    async with unit_node(tmp_path, driver=driver) as node:
        request = a_launch(1, 2)
        await node.launch(request)
        assert _rejection(request) == messages.Rejected(
            node="n1",
            reason="client_fault",
            code="InvalidKeyPair.NotFound",
            message="The key pair 'x' does not exist",
        )
        assert node.state_of(1) is None
        assert node.ledger.free == node.ledger.total
        assert driver.checked == ["ami-12345678 on t3.medium"]


async def test_what_this_node_cannot_say_sends_the_launch_to_another(tmp_path: Path) -> None:
    driver = _PickyDriver(tmp_path / "guests")
    driver.fault = NodeFault("not read yet")
    async with unit_node(tmp_path, driver=driver) as node:
        request = a_launch(1)
        await node.launch(request)
        assert request.rejected() == "node_fault"
        assert _rejection(request).message == "not read yet"


async def test_a_promise_is_kept_though_its_image_is_gone(tmp_path: Path) -> None:
    driver = _PickyDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        driver.fault = ClientFault("InvalidAMIID.NotFound", "gone")
        repeated, more = a_launch(1), a_launch(1, 2)
        await node.launch(repeated, more)
        assert repeated.accepted() == more.accepted() == (instance_id(1),)
        assert node.state_of(2) is None


async def test_a_guest_is_told_to_have_the_addresses_that_its_driver_gives(tmp_path: Path) -> None:
    async with unit_node(tmp_path, driver=_PickyDriver(tmp_path / "guests")) as node:
        await node.launch(a_launch(1))
        (report,) = node.instances.reports()
        assert report.private_ip_address == "169.254.1.2"
        assert report.mac_address == "02:00:00:00:00:01"


async def test_a_guest_outside_any_network_is_told_to_have_no_address(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(a_launch(1))
        (report,) = node.instances.reports()
        assert report.private_ip_address is msgspec.UNSET
        assert report.mac_address is msgspec.UNSET


async def test_a_guest_gets_the_root_disk_that_was_asked_for(tmp_path: Path) -> None:
    asked = msgspec.structs.replace(
        messages.decode(launch_request(1), messages.LaunchRequest), root_disk_gib=20
    )
    async with unit_node(tmp_path) as node:
        await node.launch(
            Delivered(messages.encode(asked), launch_headers()), a_launch(2, launch=2)
        )
        sizes = [entry.guest.root_disk_gib for entry in node.instances]
        assert sizes == [20, None]


async def test_a_preview_is_told_what_its_launch_would_be_refused_for(tmp_path: Path) -> None:
    driver = _PickyDriver(tmp_path / "guests")
    driver.fault = ClientFault("InvalidAMIID.NotFound", "gone")
    async with unit_node(tmp_path, driver=driver) as node:
        previewed = await _previewed(node)
        assert previewed.fault == messages.LaunchFault(code="InvalidAMIID.NotFound", message="gone")
        assert previewed.room["t3.medium"] == 4
        driver.fault = NodeFault("not read yet")
        fault = messages.LaunchFault(code=None, message="not read yet")
        assert (await _previewed(node)).fault == fault, "the launch would go on to other nodes"
        driver.fault = None
        assert (await _previewed(node)).fault is msgspec.UNSET
        assert (await _previewed(node, instance_type="c7g.large")).fault is msgspec.UNSET


async def _previewed(node: UnitNode, *, instance_type: str = "t3.medium") -> messages.CapacityReply:
    preview = messages.LaunchPreview(instance_type=instance_type, image_id="ami-12345678")
    asked = messages.encode(messages.RegionRequest(preview=preview))
    request = Delivered(asked, subject=region_subject("r", RegionAction.DESCRIBE_CAPACITY))
    await node.actions.answer_region(request)
    (answer,) = request.answers
    return messages.decode(answer, messages.CapacityReply)
