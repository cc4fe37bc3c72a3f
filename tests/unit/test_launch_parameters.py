from __future__ import annotations

import base64
from typing import Any

import pytest

from fleetcast.errors import (
    EC2Error,
    InvalidAMIIDMalformed,
    InvalidParameterValue,
    MissingParameter,
    TagLimitExceeded,
    UnknownParameter,
)
from lambdas.run_instances.launch_parameters import LaunchParameters, launch_parameters
from lambdas.run_instances.root_disk import RootDisk

TYPES = {"t3.medium", "m8a.nano"}
IMAGE = "ami-0123456789abcdef0"
LEAST = {"ImageId": IMAGE, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1}


def checked(*, region: str | None = None, **changes: Any) -> LaunchParameters:  # noqa: ANN401 - any parameter's value
    return launch_parameters(
        LEAST | changes, instance_types=TYPES, regions=("us-east-1", "eu-west-1"), region=region
    )


def tagged(*tags: tuple[str, str], resource_type: str = "instance") -> dict[str, Any]:
    listed = [{"Key": key, "Value": value} for key, value in tags]
    return {"TagSpecifications": [{"ResourceType": resource_type, "Tags": listed}]}


FULL = {
    "KeyName": "ops",
    "UserData": base64.b64encode(b"#!/bin/sh").decode(),
    "ClientToken": "token-1",
    "InstanceInitiatedShutdownBehavior": "terminate",
    "Placement": {"AvailabilityZone": "us-east-1a"},
    **tagged(("role", "web"), ("empty", "")),
}


def test_every_parameter_arrives() -> None:
    disk = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20}}]
    assert checked(**FULL, DryRun=True, BlockDeviceMappings=disk) == LaunchParameters(
        image_id=IMAGE,
        instance_type="t3.medium",
        min_count=1,
        max_count=1,
        key_name="ops",
        user_data=b"#!/bin/sh",
        tags={"role": "web", "empty": ""},
        zone="us-east-1a",
        shutdown_behavior="terminate",
        root_disk=RootDisk(device_name="/dev/xvda", size_gib=20),
        client_token=str(FULL["ClientToken"]),
        dry_run=True,
    )


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 1_000), (1_000, 1_000)])
def test_counts_reach_their_bounds(least: int, most: int) -> None:
    parameters = checked(MinCount=least, MaxCount=most)
    assert (parameters.min_count, parameters.max_count) == (least, most)


@pytest.mark.parametrize(
    ("least", "most"), [(-1, -1), (0, 0), (0, 1), (1, 1_001), (10**9, 10**9), (2, 1), (1, -1)]
)
def test_impossible_counts_are_refused(least: int, most: int) -> None:
    with pytest.raises(InvalidParameterValue, match="Count"):
        checked(MinCount=least, MaxCount=most)


@pytest.mark.parametrize("name", ["ImageId", "InstanceType"])
@pytest.mark.parametrize("present", [True, False])
def test_what_to_launch_must_be_said(name: str, *, present: bool) -> None:
    parameters: dict[str, object] = {key: value for key, value in LEAST.items() if key != name}
    if present:
        parameters[name] = ""
    with pytest.raises(MissingParameter) as refusal:
        launch_parameters(parameters, instance_types=TYPES, regions=())
    assert refusal.value.parameter == name


@pytest.mark.parametrize("image", ["ubuntu", "ami-", "ami-123", "ami-0123456g", IMAGE + "\n"])
def test_a_malformed_image_id_is_refused(image: str) -> None:
    with pytest.raises(InvalidAMIIDMalformed, match="ami-"):
        checked(ImageId=image)


def test_the_old_short_image_id_is_still_one() -> None:
    assert checked(ImageId="ami-0123abcd").image_id == "ami-0123abcd"


@pytest.mark.parametrize("name", ["t9.foo", "T3.medium", "t3", "t3.medium.x", "*"])
def test_an_unknown_type_is_refused_as_ec2_refuses_it(name: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        checked(InstanceType=name)
    assert refusal.value.message == f"Invalid value '{name}' for InstanceType."


@pytest.mark.parametrize("encoded", ["not base64!", "YQ", "YQ==x", "YQ==\n", "é"])
def test_user_data_must_be_strict_base64(encoded: str) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        checked(UserData=encoded)
    assert refusal.value.message == "Invalid BASE64 encoding of user data"


def test_user_data_may_have_16_kib_before_encoding_and_no_more() -> None:
    assert len(checked(UserData=base64.b64encode(b"x" * 16_384).decode()).user_data) == 16_384
    with pytest.raises(InvalidParameterValue, match="16384"):
        checked(UserData=base64.b64encode(b"x" * 16_385).decode())


def test_user_data_is_in_no_repr() -> None:
    parameters = checked(UserData=base64.b64encode(b"secret").decode())
    assert "secret" not in repr(parameters)
    assert "secret" not in f"{parameters}"
    assert "t3.medium" in repr(parameters)


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        ({"ClientToken": ""}, InvalidParameterValue),
        ({"ClientToken": "a" * 65}, InvalidParameterValue),
        ({"ClientToken": "tökén"}, InvalidParameterValue),
        ({"ClientToken": "a\n"}, InvalidParameterValue),
        ({"KeyName": ""}, InvalidParameterValue),
        ({"KeyName": "a" * 256}, InvalidParameterValue),
        ({"KeyName": "a\x00"}, InvalidParameterValue),
        ({"InstanceInitiatedShutdownBehavior": "explode"}, InvalidParameterValue),
        ({"Placement": {"AvailabilityZone": ""}}, InvalidParameterValue),
        ({"Placement": {"AvailabilityZone": "us-east-1a.>"}}, InvalidParameterValue),
        ({"DisableApiStop": True}, UnknownParameter),
        ({"DisableApiTermination": True}, UnknownParameter),
        ({"EbsOptimized": True}, UnknownParameter),
        ({"Monitoring": {"Enabled": True}}, UnknownParameter),
        (tagged(("a", "b"), resource_type="volume"), InvalidParameterValue),
        (tagged(("a", "b"), resource_type=""), InvalidParameterValue),
        (tagged(("", "b")), InvalidParameterValue),
        (tagged(("k" * 128, "b")), InvalidParameterValue),
        (tagged(("k", "v" * 256)), InvalidParameterValue),
        (tagged(("aws:k", "v")), InvalidParameterValue),
        (tagged(("AWS:k", "v")), InvalidParameterValue),
        (tagged(("k", "a\x07")), InvalidParameterValue),
        (tagged(("k", "1"), ("k", "2")), InvalidParameterValue),
        (tagged(*[(f"k{number}", "") for number in range(51)]), TagLimitExceeded),
    ],
)
def test_a_value_that_ec2_would_not_take_is_refused(
    parameters: dict[str, Any], refused: type[EC2Error]
) -> None:
    with pytest.raises(refused):
        checked(**parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"ClientToken": "a" * 64},
        {"KeyName": "ключ"},
        {"DisableApiStop": False, "EbsOptimized": False, "Monitoring": {"Enabled": False}},
        tagged(("k" * 127, "v" * 255)),
        tagged(*[(f"k{number}", "") for number in range(50)]),
    ],
)
def test_a_value_at_its_bound_is_taken(parameters: dict[str, Any]) -> None:
    checked(**parameters)


def test_the_fingerprint_ignores_the_token_and_nothing_else() -> None:
    fingerprint = checked(**FULL).fingerprint()
    assert fingerprint == checked(**FULL | {"ClientToken": "token-2"}).fingerprint()
    different: list[dict[str, Any]] = [
        {"ImageId": "ami-0123abcd"},
        {"InstanceType": "m8a.nano"},
        {"MaxCount": 2},
        {"MinCount": 2, "MaxCount": 2},
        {"KeyName": "dev"},
        {"UserData": ""},
        {"InstanceInitiatedShutdownBehavior": "stop"},
        {"Placement": {"AvailabilityZone": "us-east-1b"}},
        tagged(("role", "db")),
    ]
    others = {checked(**FULL | each).fingerprint() for each in different}
    assert len(others | {fingerprint}) == len(different) + 1


def test_the_fingerprint_knows_no_order_of_tags() -> None:
    one = checked(**tagged(("a", "1"), ("b", "2")))
    two = checked(**tagged(("b", "2"), ("a", "1")))
    assert one.fingerprint() == two.fingerprint()


def test_a_default_said_aloud_is_the_same_launch() -> None:
    aloud = checked(InstanceInitiatedShutdownBehavior="stop", EbsOptimized=False, UserData="")
    assert aloud.fingerprint() == checked().fingerprint()


def test_the_fingerprint_stays_the_same_across_releases() -> None:
    assert checked(**FULL).fingerprint() == (
        "425afb03db2c43a9ceb4b9f8f22e86e57d69922dccdb91000ae21a27157e6746"
    )


# --- where to launch -----------------------------------------------------------------------


def test_the_endpoint_of_a_region_pins_a_launch_to_it() -> None:
    parameters = checked(region="eu-west-1")
    assert (parameters.region, parameters.zone) == ("eu-west-1", None)


def test_the_name_of_a_region_as_zone_means_the_region() -> None:
    parameters = checked(Placement={"AvailabilityZone": "eu-west-1"})
    assert (parameters.region, parameters.zone) == ("eu-west-1", None)


def test_a_zone_within_the_region_of_the_endpoint_pins_to_both() -> None:
    parameters = checked(region="us-east-1", Placement={"AvailabilityZone": "us-east-1a"})
    assert (parameters.region, parameters.zone) == ("us-east-1", "us-east-1a")


def test_another_region_than_the_endpoints_is_no_zone_there() -> None:
    with pytest.raises(InvalidParameterValue, match="eu-west-1"):
        checked(region="us-east-1", Placement={"AvailabilityZone": "eu-west-1"})


def test_where_a_launch_is_pinned_to_is_part_of_what_a_token_must_repeat() -> None:
    assert checked(region="us-east-1").fingerprint() != checked().fingerprint()
