"""What a node's images and key pairs do to launches, as an EC2 client is told of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.exceptions import ClientError

from fleetcast.local.conditions import wait_until
from fleetcast.local.guest_image import build_guest_image
from tests.ec2_endpoint import ec2_client, error_of
from tests.image_server import ID, ImageServer, an_image, catalogue_text, image_server
from tests.small_fleet import TYPE, SmallFleet, small_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_ec2 import EC2Client

pytestmark = pytest.mark.host_packages

_REGION: Final = "us-east-1"
_ARM_ID: Final = "ami-0123456789abcdef1"
_CONTENT: Final = b"no disk at all"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    """One node that runs real guests, whose images are all useless."""
    disk, catalogue = tmp_path / "disk.raw", tmp_path / "images.toml"
    disk.write_bytes(b"what somebody else has put there")
    catalogue.write_text(
        catalogue_text(
            an_image(_CONTENT, path=str(disk)),
            an_image(_CONTENT, id=_ARM_ID, path=str(disk), architecture="arm64", firmware="uefi"),
        ),
        encoding="utf-8",
    )
    with small_fleet(tmp_path, monkeypatch) as made:
        made.start_region(_REGION)
        made.start_agent(
            _REGION,
            "n1",
            slots=2,  # one: a guest takes more than its own memory
            driver="qemu",
            **{"images.catalogue": str(catalogue), "qemu.accelerator": "tcg"},
        )
        made.start_function(_REGION)
        yield made


def _launch(client: EC2Client, **how: Any) -> Any:  # noqa: ANN401 - botocore's answers
    return client.run_instances(
        **{"ImageId": ID, "InstanceType": TYPE, "MinCount": 1, "MaxCount": 1, **how}
    )


def test_what_no_node_could_boot_is_refused_and_leaves_nothing(fleet: SmallFleet) -> None:
    client = ec2_client()
    refusals: list[tuple[dict[str, Any], str, str]] = [
        ({"ImageId": "ami-0000000a"}, "InvalidAMIID.NotFound", "'[ami-0000000a]' does not exist"),
        ({"ImageId": "ami-1"}, "InvalidAMIID.Malformed", '"ami-1"'),
        (
            {"ImageId": _ARM_ID},
            "InvalidParameterValue",
            "architecture 'arm64' of the specified AMI",
        ),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound", "'nobody' does not exist"),
        ({"ImageId": "ami-0000000a", "MinCount": 2, "MaxCount": 9}, "InvalidAMIID.NotFound", ""),
    ]
    for parameters, code, told in refusals:
        for is_dry_run in (True, False):
            with pytest.raises(ClientError) as refusal:
                _launch(client, ClientToken="again", DryRun=is_dry_run, **parameters)
            found, message, status = error_of(refusal.value)
            assert (found, status) == (code, 400)
            assert told in message
            assert not fleet.records()
    with pytest.raises(ClientError, match="Request would have succeeded"):
        _launch(client, DryRun=True)
    # The token is free again, and so is the room.
    _launch(client, ClientToken="again")


def test_a_guest_boots_from_an_image_that_its_regions_catalogue_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ec2_client()
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 1}}
    with (
        image_server(tmp_path, monkeypatch) as server,
        small_fleet(tmp_path, monkeypatch) as fleet,
    ):
        image = server.image(build_guest_image().read_bytes())
        server.files["/images.toml"] = catalogue_text(image).encode()
        fleet.start_region(_REGION)
        fleet.start_agent(
            _REGION,
            "n1",
            slots=1,
            driver="qemu",
            **{
                "images.catalogue": str(tmp_path / "none.toml"),
                "images.region_catalogue": server.url("/images.toml"),
                "qemu.accelerator": "tcg",
            },
        )
        fleet.start_function(_REGION)
        assert wait_until(lambda: _would_launch(client), 30)  # the node has read the catalogue
        server.may_end.clear()
        _end_one_that_waits_for_its_image(client, server)
        server.may_end.set()
        launch = _launch(client, InstanceType="t3.nano", BlockDeviceMappings=[disk])
        name = launch["Instances"][0]["InstanceId"]

        def has_come_up() -> bool:
            answer = client.get_console_output(InstanceId=name)
            return "guest: root disk 1073741824 bytes" in answer["Output"]

        try:
            assert wait_until(has_come_up, 60, every_s=0.2)
            (described,) = client.describe_instances(InstanceIds=[name])["Reservations"]
        finally:  # its guest would outlive its agent
            client.terminate_instances(InstanceIds=[name])
            guests = tmp_path / "n1" / "state" / "guests"
            assert wait_until(lambda: not list(guests.iterdir()), 30, every_s=0.2)
        (instance,) = described["Instances"]
        assert instance["State"]["Name"] == "running"
        assert instance["PrivateIpAddress"].startswith("169.254.")
        assert instance["RootDeviceName"] == "/dev/sda1"
        assert server.asked["/image"] == 1


def test_a_node_without_images_is_not_asked_until_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, catalogue = ec2_client(), tmp_path / "images.toml"
    with small_fleet(tmp_path, monkeypatch) as fleet:
        fleet.start_region(_REGION)
        fleet.start_agent(
            _REGION,
            "n1",
            slots=1,
            driver="qemu",
            **{"images.catalogue": str(catalogue), "qemu.accelerator": "tcg"},
        )
        fleet.start_function(_REGION)
        with pytest.raises(ClientError) as refusal:
            _launch(client, InstanceType="t3.nano")
        assert error_of(refusal.value)[0] == "InsufficientInstanceCapacity"
        disk = tmp_path / "disk.raw"
        disk.write_bytes(_CONTENT)
        catalogue.write_text(catalogue_text(an_image(_CONTENT, path=str(disk))), encoding="utf-8")
        assert wait_until(lambda: _would_launch(client), 15)


def _would_launch(client: EC2Client) -> bool:
    with pytest.raises(ClientError) as refusal:
        _launch(client, InstanceType="t3.nano", DryRun=True)
    return error_of(refusal.value)[0] == "DryRunOperation"


def _end_one_that_waits_for_its_image(client: EC2Client, server: ImageServer) -> None:
    launch = _launch(client, InstanceType="t3.nano")
    name = launch["Instances"][0]["InstanceId"]
    assert wait_until(lambda: server.asked["/image"], 15)
    client.terminate_instances(InstanceIds=[name])

    def has_ended() -> bool:
        (described,) = client.describe_instances(InstanceIds=[name])["Reservations"]
        return described["Instances"][0]["State"]["Name"] == "terminated"

    assert wait_until(has_ended, 15)


def test_an_image_with_another_content_ends_its_instance_and_says_why(fleet: SmallFleet) -> None:
    client = ec2_client()
    disk = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 2}}
    (launched,) = _launch(client, BlockDeviceMappings=[disk])["Instances"]
    assert launched["RootDeviceName"] == "/dev/xvda"

    def described() -> Any:  # noqa: ANN401 - botocore's answers
        ids = [launched["InstanceId"]]
        return client.describe_instances(InstanceIds=ids)["Reservations"][0]["Instances"][0]

    assert wait_until(lambda: described()["State"]["Name"] == "terminated", 15)
    reason = described()["StateReason"]
    assert reason["Code"] == "Server.InternalError"
    assert "is not what its catalogue says" in reason["Message"]
    assert hashlib.sha256(_CONTENT).hexdigest() in reason["Message"]
    # It never had them, but for as long as it was there they were its own.
    (record,) = fleet.records()
    assert record.mac_address is not None
    assert record.mac_address.startswith("02:")
    assert record.private_ip_address is not None
    assert record.private_ip_address.startswith("169.254.")
