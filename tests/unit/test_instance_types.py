"""EC2's catalogue, and the types that a fleet defines itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import InvalidConfiguration, UnknownInstanceType
from fleetcast.instance_types import EC2_CATALOGUE_PATH, Catalogue, InstanceType, ec2_catalogue

if TYPE_CHECKING:
    from random import Random

M8A_NANO = InstanceType(name="m8a.nano", vcpu=1, memory_mib=512)


def test_ec2s_types_have_what_ec2_documents() -> None:
    medium = ec2_catalogue().lookup("t3.medium")
    assert (medium.vcpu, medium.memory_mib, medium.gpus) == (2, 4096, 0)
    assert (medium.family, medium.size) == ("t3", "medium")
    assert ec2_catalogue().lookup("m7g.large").architectures == ("arm64",)
    big = ec2_catalogue().lookup("p4d.24xlarge")
    assert (big.gpus, big.gpu_name, big.gpu_manufacturer) == (8, "A100", "NVIDIA")


def test_a_slice_of_a_gpu_needs_a_host_with_a_gpu() -> None:
    assert ec2_catalogue().lookup("g6f.large").gpus == 1


def test_the_preferred_architecture_comes_first() -> None:
    assert ec2_catalogue().lookup("t2.micro").architectures == ("x86_64", "i386")


def test_the_data_file_is_sorted_complete_and_one_type_a_line() -> None:
    lines = EC2_CATALOGUE_PATH.read_text().splitlines()
    names = [entry.name for entry in ec2_catalogue()]
    assert names == sorted(set(names))
    assert len(lines) == len(names) + 2 == len(ec2_catalogue()) + 2
    assert len(names) > 1000
    assert ec2_catalogue().to_json() == EC2_CATALOGUE_PATH.read_bytes()


def test_an_unknown_type_is_named_in_the_error() -> None:
    assert "t9.foo" not in ec2_catalogue()
    with pytest.raises(UnknownInstanceType, match=r"t9\.foo"):
        ec2_catalogue().lookup("t9.foo")


@pytest.mark.parametrize(
    "name", ["", "t3", "t3.", ".medium", "t3.medium.large", "T3.medium", "t3.*", "t3.>", "t3.a b"]
)
def test_a_name_that_is_not_family_and_size_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match="name"):
        InstanceType(name=name, vcpu=1, memory_mib=512)


@pytest.mark.parametrize(
    ("field", "value"),
    [("vcpu", 0), ("memory_mib", 0), ("memory_mib", -1), ("gpus", -1), ("architectures", ())],
)
def test_a_type_that_needs_nothing_or_less_is_refused_by_its_field(
    field: str, value: object
) -> None:
    fields: dict[str, Any] = {"name": "m8a.nano", "vcpu": 1, "memory_mib": 512, field: value}
    with pytest.raises(InvalidConfiguration, match=field):
        InstanceType(**fields)


# --- a fleet's own types -------------------------------------------------------------------


def test_a_fleets_own_type_stands_beside_ec2s() -> None:
    catalogue = ec2_catalogue().with_types([M8A_NANO])
    assert catalogue.lookup("m8a.nano") == M8A_NANO
    assert "t3.medium" in catalogue
    assert len(catalogue) == len(ec2_catalogue()) + 1
    assert "m8a.nano" not in ec2_catalogue()


def test_ec2s_types_cannot_be_given_another_meaning() -> None:
    small = InstanceType(name="t3.medium", vcpu=1, memory_mib=512)
    with pytest.raises(InvalidConfiguration, match=r"own_instance_types\[1\].*t3\.medium"):
        ec2_catalogue().with_types([M8A_NANO, small], key="own_instance_types")


def test_a_fleets_own_type_cannot_be_defined_twice_in_two_ways() -> None:
    larger = msgspec.structs.replace(M8A_NANO, vcpu=2)
    with pytest.raises(InvalidConfiguration, match=r"instance_types\[1\].*m8a\.nano"):
        Catalogue([]).with_types([M8A_NANO, larger])


def test_an_own_type_that_ec2_came_to_define_alike_is_no_error() -> None:
    catalogue = Catalogue([M8A_NANO]).with_types([M8A_NANO])
    assert list(catalogue) == [M8A_NANO]


# --- the data file -------------------------------------------------------------------------

tokens = st.text("az09-", min_size=1, max_size=6)
instance_types = st.builds(
    InstanceType,
    name=st.builds("{}.{}".format, tokens, tokens),
    vcpu=st.integers(1, 512),
    memory_mib=st.integers(1, 2**25),
    gpus=st.integers(0, 16),
    gpu_name=st.none() | st.text(max_size=8),
    gpu_manufacturer=st.none() | st.text(max_size=8),
    architectures=st.lists(tokens, min_size=1, max_size=3).map(tuple),
)


@given(st.lists(instance_types, unique_by=lambda entry: entry.name), st.randoms())
def test_a_data_file_reads_back_and_depends_on_no_order(
    entries: list[InstanceType], random: Random
) -> None:
    encoded = Catalogue(entries).to_json()
    assert list(Catalogue.from_json(encoded)) == sorted(entries, key=lambda entry: entry.name)
    random.shuffle(entries)
    assert Catalogue(entries).to_json() == encoded


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"{}",
        b'[{"name":"t3.medium"}]',
        b'[{"name":"t3","vcpu":1,"memory_mib":1}]',
        b"\xff",
        b'[{"name":"t3.\xff","vcpu":1,"memory_mib":1}]',
    ],
)
def test_what_is_no_data_file_is_refused_by_name(encoded: bytes) -> None:
    with pytest.raises(InvalidConfiguration, match=r"instance_types\.json"):
        Catalogue.from_json(encoded)
