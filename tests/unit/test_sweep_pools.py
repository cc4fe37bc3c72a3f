"""Which types share a spot placement score."""

from __future__ import annotations

import re

import pytest

from fleetcast.instance_types import Catalogue, InstanceType, ec2_catalogue
from lambdas.score_regions.pools import placement_pools


def pool_of(name: str, catalogue: Catalogue | None = None) -> tuple[str, ...]:
    [pool] = placement_pools([name], {}, catalogue or ec2_catalogue())
    return pool


def test_a_pool_is_the_type_with_its_siblings_of_equal_size() -> None:
    pool = pool_of("t3.medium")

    assert {"t3.medium", "c5.large", "c7i.large"} <= set(pool)
    sizes = {ec2_catalogue().lookup(name) for name in pool}
    assert {(size.vcpu, size.memory_mib, size.gpus) for size in sizes} == {(2, 4096, 0)}
    assert not any("arm64" in size.architectures for size in sizes)


def test_every_type_is_in_its_own_pool_of_at_least_three() -> None:
    pools = placement_pools((known.name for known in ec2_catalogue()), {}, ec2_catalogue())

    assert sum(map(len, pools.values())) == len(ec2_catalogue())
    for pool, types in pools.items():
        assert set(types) <= set(pool)
        assert len(set(pool)) == len(pool) >= 3
        assert list(pool) == sorted(pool)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("p5.48xlarge", r"p\d"),
        ("trn1.32xlarge", r"trn\d"),
        ("inf2.48xlarge", r"inf\d"),
        ("g5.xlarge", r"g\d"),
    ],
)
def test_special_hardware_is_not_judged_by_other_hardware(name: str, family: str) -> None:
    assert all(re.match(family, member) for member in pool_of(name))


def test_types_of_one_size_share_a_pool_and_so_a_call() -> None:
    pools = placement_pools(["t3.medium", "m5.large", "c5.large"], {}, ec2_catalogue())

    assert sorted(pools.values()) == [["m5.large"], ["t3.medium", "c5.large"]]


def test_a_configured_pool_takes_the_place_of_the_siblings() -> None:
    own = ("m7i.large", "c7i.large", "r7i.large")
    pools = placement_pools(
        ["t3.medium", "c5.large", "m8a.nano"],
        {"t3.medium": own, "m8a.nano": own[::-1]},
        ec2_catalogue(),
    )

    assert pools[tuple(sorted(own))] == ["t3.medium", "m8a.nano"]
    assert len(pools) == 2


def test_a_type_that_ec2_does_not_have_is_in_no_pool() -> None:
    assert placement_pools(["m8a.nano"], {}, ec2_catalogue()) == {}


def test_too_few_siblings_are_joined_by_the_nearest_in_size() -> None:
    sizes = {
        "x.small": (1, 1024),
        "x.large": (4, 4096),
        "y.large": (4, 4096),
        "x.huge": (64, 65536),
    }
    catalogue = Catalogue(
        InstanceType(name=name, vcpu=vcpu, memory_mib=memory_mib)
        for name, (vcpu, memory_mib) in sizes.items()
    )

    assert pool_of("x.large", catalogue) == ("x.large", "x.small", "y.large")
