"""How many fit: the one answer for tokens, admission and reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.capacity import Resources, how_many_fit, resources_of
from fleetcast.instance_types import ec2_catalogue

_amounts = st.builds(
    Resources,
    vcpu=st.integers(-50, 500),
    memory_mib=st.integers(-5_000, 500_000),
    gpus=st.integers(-2, 16),
)
_needs = st.builds(
    Resources,
    vcpu=st.integers(1, 64),
    memory_mib=st.integers(1, 65_536),
    gpus=st.integers(0, 8),
)


@pytest.mark.parametrize(
    ("free", "fits"),
    [
        (Resources(vcpu=8, memory_mib=32_768), 4),
        (Resources(vcpu=8, memory_mib=8_191), 1),
        (Resources(vcpu=1, memory_mib=32_768), 0),
        (Resources(vcpu=-2, memory_mib=32_768), 0),
    ],
)
def test_the_scarcest_resource_decides(free: Resources, fits: int) -> None:
    assert how_many_fit(free, Resources(vcpu=2, memory_mib=4_096)) == fits


def test_gpus_count_only_for_types_that_have_some() -> None:
    free = Resources(vcpu=64, memory_mib=262_144, gpus=1)
    assert how_many_fit(free, Resources(vcpu=2, memory_mib=4_096)) == 32
    assert how_many_fit(free, Resources(vcpu=2, memory_mib=4_096, gpus=1)) == 1
    assert how_many_fit(free, Resources(vcpu=2, memory_mib=4_096, gpus=2)) == 0


@given(_amounts, _needs)
def test_as_many_as_fit_can_be_taken_and_not_one_more(free: Resources, need: Resources) -> None:
    fits = how_many_fit(free, need)
    left = free
    for _ in range(fits):
        left = left - need
    if fits:
        assert left.vcpu >= 0
        assert left.memory_mib >= 0
        assert left.gpus >= 0 or not need.gpus
    assert how_many_fit(left, need) == 0


@given(_amounts, _needs)
def test_giving_back_restores_what_was_free(free: Resources, need: Resources) -> None:
    assert free - need + need == free


def test_every_ec2_type_needs_something() -> None:
    for instance_type in ec2_catalogue():
        need = resources_of(instance_type)
        assert how_many_fit(need, need) == 1, instance_type.name
