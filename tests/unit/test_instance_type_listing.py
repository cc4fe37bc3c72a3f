from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import InvalidParameterValue
from fleetcast.instance_types import InstanceType, ec2_catalogue
from lambdas.run_instances.instance_type_listing import (
    ListingParameters,
    ServedType,
    listing_result,
)

OWN = InstanceType(name="our.small", vcpu=3, memory_mib=1_000, architectures=("x86_64", "i386"))


def served(*names: str, has_room: bool = True) -> list[ServedType]:
    catalogue = ec2_catalogue().with_types([OWN])
    return [ServedType(instance_type=catalogue.lookup(one), has_room=has_room) for one in names]


def listing(types: list[ServedType], **parameters: object) -> dict[str, Any]:
    return listing_result(types, msgspec.convert(parameters, ListingParameters))


def names_of(result: dict[str, Any]) -> list[str]:
    return [one["InstanceType"] for one in result["InstanceTypes"]]


def filtered(types: list[ServedType], name: str, *values: str) -> list[str]:
    return names_of(listing(types, Filters=[{"Name": name, "Values": list(values)}]))


# --- what a type looks like ----------------------------------------------------------------


def test_a_type_has_the_size_of_the_catalogue() -> None:
    (shown,) = listing(served("m6g.xlarge"))["InstanceTypes"]
    assert shown["VCpuInfo"] == {"DefaultVCpus": 4}
    assert shown["MemoryInfo"] == {"SizeInMiB": 16_384}
    assert shown["ProcessorInfo"] == {"SupportedArchitectures": ["arm64"]}
    assert shown["GpuInfo"] is None


def test_a_fleets_own_type_is_described_as_ec2s_are() -> None:
    (shown,) = listing(served("our.small"))["InstanceTypes"]
    assert (shown["InstanceType"], shown["VCpuInfo"]) == ("our.small", {"DefaultVCpus": 3})


def test_gpus_are_counted_and_named() -> None:
    (shown,) = listing(served("g4dn.12xlarge"))["InstanceTypes"]
    (gpu,) = shown["GpuInfo"]["Gpus"]
    assert (gpu["Count"], gpu["Manufacturer"], gpu["Name"]) == (4, "NVIDIA", "T4")


def test_what_clients_step_into_is_there() -> None:
    # Source: terraform-provider-aws, data source aws_ec2_instance_type.
    (shown,) = listing(served("g4dn.xlarge"))["InstanceTypes"]
    for structure in ("EbsInfo", "MemoryInfo", "NetworkInfo", "PlacementGroupInfo", "VCpuInfo"):
        assert isinstance(shown[structure], dict)
    assert isinstance(shown["GpuInfo"]["Gpus"][0]["MemoryInfo"], dict)


# --- which types ---------------------------------------------------------------------------


def test_types_are_listed_by_name() -> None:
    assert names_of(listing(served("t3.nano", "c5.large", "t3.micro"))) == [
        "c5.large",
        "t3.micro",
        "t3.nano",
    ]


def test_only_the_named_ones_are_listed() -> None:
    types = served("t3.nano", "t3.micro")
    assert names_of(listing(types, InstanceTypes=["t3.micro", "t3.micro"])) == ["t3.micro"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("instance-type", "our.*"),
        ("memory-info.size-in-mib", "1000"),
        ("processor-info.supported-architecture", "i386"),
        ("vcpu-info.default-vcpus", "3"),
    ],
)
def test_each_filter_finds_the_type_that_has_the_value(name: str, value: str) -> None:
    assert filtered(served("our.small", "t3.medium"), name, value) == ["our.small"]


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("auto-recovery-supported", "false"),
        ("bare-metal", "false"),
        ("burstable-performance-supported", "false"),
        ("current-generation", "true"),
        ("dedicated-hosts-supported", "false"),
        ("free-tier-eligible", "false"),
        ("hibernation-supported", "false"),
        ("instance-storage-supported", "false"),
        ("supported-root-device-type", "ebs"),
        ("supported-usage-class", "on-demand"),
        ("supported-virtualization-type", "hvm"),
    ],
)
def test_what_all_types_have_in_common_can_be_filtered_by_too(name: str, holds: str) -> None:
    types = served("t3.medium")
    assert filtered(types, name, holds) == ["t3.medium"]
    assert filtered(types, name, {"true": "false", "false": "true"}.get(holds, "other")) == []


def test_what_has_room_now_is_told_apart() -> None:
    types = [*served("t3.nano"), *served("t3.micro", has_room=False)]
    assert filtered(types, "fleetcast:has-room", "true") == ["t3.nano"]
    assert filtered(types, "fleetcast:has-room", "false") == ["t3.micro"]
    assert filtered(types, "fleetcast:has-room", "true", "false") == ["t3.micro", "t3.nano"]


@pytest.mark.parametrize("name", ["has-room", "ebs-info.nvme-support", "", "tag:role"])
def test_an_unknown_filter_is_refused_rather_than_ignored(name: str) -> None:
    with pytest.raises(InvalidParameterValue, match=f"The filter '{name}' is invalid"):
        filtered([], name, "x")


# --- pages ---------------------------------------------------------------------------------


@given(count=st.integers(0, 250), page_size=st.none() | st.integers(5, 100))
def test_pages_together_hold_every_type_once(count: int, page_size: int | None) -> None:
    types = [ServedType(instance_type=one, has_room=True) for one in ec2_catalogue()][:count]
    seen: list[str] = []
    token = None
    while True:
        page = listing(types, MaxResults=page_size, NextToken=token)
        assert len(page["InstanceTypes"]) <= (page_size or 100)
        seen += names_of(page)
        token = page["NextToken"]
        if token is None:
            break
        assert len(page["InstanceTypes"]) == (page_size or 100)
    assert seen == sorted(one.instance_type.name for one in types)


@pytest.mark.parametrize("size", [-1, 0, 4, 101])
def test_a_page_size_outside_ec2s_range_is_refused(size: int) -> None:
    with pytest.raises(InvalidParameterValue, match="maxResults"):
        listing([], MaxResults=size)


@pytest.mark.parametrize("token", ["", "x", "é", "e30=", "WzFd"])
def test_a_token_that_is_not_ours_is_refused(token: str) -> None:
    with pytest.raises(InvalidParameterValue, match="pagination token"):
        listing([], NextToken=token)
