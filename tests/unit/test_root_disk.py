"""The root disk is as large as was asked for; what a node can't do is refused, not dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import pytest

from fleetcast.errors import (
    EC2Error,
    InvalidBlockDeviceMapping,
    InvalidParameterValue,
    MissingParameter,
    UnknownParameter,
)
from lambdas.run_instances.ec2_protocol import decode_request
from lambdas.run_instances.launch_parameters import LaunchParameters, launch_parameters
from lambdas.run_instances.root_disk import RootDisk

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST: Final = {
    "Action": "RunInstances",
    "Version": "2016-11-15",
    "ImageId": "ami-12345678",
    "InstanceType": "t3.medium",
    "MinCount": "1",
    "MaxCount": "1",
}
_ROOT: Final = {"BlockDeviceMapping.1.DeviceName": "/dev/sda1"}


def _launch(fields: Mapping[str, str]) -> LaunchParameters:
    request = decode_request(urlencode({**_LEAST, **fields}))
    return launch_parameters(request.parameters, instance_types={"t3.medium"}, regions=())


@pytest.mark.parametrize(
    ("fields", "disk"),
    [
        ({}, RootDisk()),
        (_ROOT, RootDisk()),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "1"}, RootDisk(size_gib=1)),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "16384"}, RootDisk(size_gib=16384)),
        (
            {
                "BlockDeviceMapping.1.DeviceName": "/dev/xvda",
                "BlockDeviceMapping.1.Ebs.VolumeSize": "20",
                "BlockDeviceMapping.1.Ebs.VolumeType": "gp2",
                "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
            },
            RootDisk(device_name="/dev/xvda", size_gib=20),
        ),
    ],
)
def test_a_root_disk_is_as_it_was_asked_for(fields: dict[str, str], disk: RootDisk) -> None:
    assert _launch(fields).root_disk == disk


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        (
            {"BlockDeviceMapping.1.Ebs.VolumeSize": "8"},
            MissingParameter,
            "BlockDeviceMapping.1.DeviceName",
        ),
        (
            {"BlockDeviceMapping.1.DeviceName": "/dev/sdf"},
            InvalidBlockDeviceMapping,
            "/dev/sda1 or /dev/xvda",
        ),
        (
            _ROOT | {"BlockDeviceMapping.2.DeviceName": "/dev/sda1"},
            InvalidBlockDeviceMapping,
            "'/dev/sda1' is used in more than one",
        ),
        (
            _ROOT | {"BlockDeviceMapping.2.DeviceName": "/dev/sdf"},
            InvalidBlockDeviceMapping,
            "/dev/sdf",
        ),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "0"}, InvalidParameterValue, "1 to 16384"),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "16385"}, InvalidParameterValue, "16385"),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "8G"}, InvalidParameterValue, "Size"),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeType": "io2"}, InvalidParameterValue, "gp2, gp3"),
        (
            _ROOT | {"BlockDeviceMapping.1.Ebs.DeleteOnTermination": "false"},
            InvalidParameterValue,
            "deleteOnTermination",
        ),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.SnapshotId": "snap-1"}, UnknownParameter, "SnapshotId"),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.Encrypted": "true"}, UnknownParameter, "Encrypted"),
        (_ROOT | {"BlockDeviceMapping.1.Ebs.Iops": "3000"}, UnknownParameter, "Iops"),
        (_ROOT | {"BlockDeviceMapping.1.NoDevice": ""}, UnknownParameter, "NoDevice"),
        (_ROOT | {"BlockDeviceMapping.1.VirtualName": "ephemeral0"}, UnknownParameter, "Virtual"),
    ],
)
def test_what_a_node_cannot_do_is_refused(
    fields: dict[str, str], error: type[EC2Error], told: str
) -> None:
    with pytest.raises(error, match=told):
        _launch(fields)


def test_a_repeated_token_must_repeat_the_size_of_the_disk() -> None:
    plain = _launch({})
    sized = _launch(_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "20"})
    assert plain.fingerprint() == _launch(_ROOT).fingerprint()
    assert sized.fingerprint() not in {
        plain.fingerprint(),
        _launch(_ROOT | {"BlockDeviceMapping.1.Ebs.VolumeSize": "21"}).fingerprint(),
    }
