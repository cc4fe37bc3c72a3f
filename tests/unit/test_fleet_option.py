"""FLEET=...: what it means, and what is said of one that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.settings import read_settings
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import ec2_catalogue
from fleetcast.local.fleet import (
    DEFAULT_FLEET,
    SERVED_TYPES,
    NodeGroup,
    NodeSize,
    parse_fleet,
    parse_size,
    write_agent_config,
)

if TYPE_CHECKING:
    from pathlib import Path

REGIONS = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20)
GROUPS = st.tuples(REGIONS, st.integers(1, 9), st.integers(1, 200), st.integers(1, 999))


def test_groups_come_in_the_order_written_with_memory_in_mib() -> None:
    assert parse_fleet("us-east-1=2x8vcpu/32GiB,eu-west-1=1x4vcpu/512MiB") == (
        NodeGroup(
            region="us-east-1",
            nodes=("us-east-1-1", "us-east-1-2"),
            zones=("us-east-1a", "us-east-1b"),
            size=NodeSize(vcpu=8, memory_mib=32_768),
        ),
        NodeGroup(
            region="eu-west-1",
            nodes=("eu-west-1-1",),
            zones=("eu-west-1a",),
            size=NodeSize(vcpu=4, memory_mib=512),
        ),
    )


def test_a_region_may_have_nodes_of_several_sizes() -> None:
    large, small = parse_fleet("lab=1x8vcpu/32GiB, lab=2x2vcpu/4GiB")
    assert large.nodes == ("lab-1",)
    assert small.nodes == ("lab-2", "lab-3")


def test_the_nodes_of_a_region_take_turns_in_its_zones() -> None:
    large, small = parse_fleet("lab=1x8vcpu/32GiB,lab=3x2vcpu/4GiB")
    assert (*large.zones, *small.zones) == ("laba", "labb", "labc", "laba")


def test_the_default_fleet_is_a_fleet() -> None:
    assert [group.region for group in parse_fleet(DEFAULT_FLEET)] == ["us-east-1", "eu-west-1"]


@given(st.lists(GROUPS, min_size=1, max_size=6))
def test_what_is_written_is_what_is_read(written: list[tuple[str, int, int, int]]) -> None:
    text = ",".join(f"{region}={n}x{vcpu}vcpu/{gib}GiB" for region, n, vcpu, gib in written)
    groups = parse_fleet(text)
    assert [
        (group.region, len(group.nodes), group.size.vcpu, group.size.memory_mib) for group in groups
    ] == [(region, n, vcpu, gib * 1024) for region, n, vcpu, gib in written]
    places = [(group.region, node) for group in groups for node in group.nodes]
    assert len(places) == len(set(places))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is no group of nodes"),
        ("us-east-1", "'us-east-1' is no group of nodes"),
        ("us-east-1=3x8vcpu/32GiB,", "'' is no group of nodes"),
        ("us-east-1=3y8vcpu/32GiB", "'us-east-1=3y8vcpu/32GiB' is no group of nodes"),
        ("us-east-1=0x8vcpu/32GiB", "is no group of nodes"),
        ("us-east-1=3x0vcpu/32GiB", "'0vcpu/32GiB' is no node size"),
        ("us-east-1=3x8vcpu/32GB", "'8vcpu/32GB' is no node size"),
        ("us-east-1=3x8vcpu", "'8vcpu' is no node size"),
        ("us-east-1=3x8vcpu/1.5GiB", "'8vcpu/1.5GiB' is no node size"),
        ("lab=60x1vcpu/1GiB,edge=41x1vcpu/1GiB", "has too many nodes; expected at most 100"),
        ("US=3x8vcpu/32GiB", "region 'US' may hold only"),
        ("us.east=3x8vcpu/32GiB", "region 'us.east' may hold only"),
    ],
)
def test_a_wrong_fleet_is_refused_with_the_part_that_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        parse_fleet(text)
    assert str(refused.value).startswith("FLEET: ")
    assert complaint in str(refused.value)
    assert "expected" in str(refused.value)


@pytest.mark.parametrize("zone", [None, "us-east-1a"])
def test_the_agent_understands_the_configuration_that_is_written_for_it(
    tmp_path: Path, zone: str | None
) -> None:
    path = tmp_path / "agent.toml"
    write_agent_config(
        path,
        node="n1",
        region="us-east-1",
        zone=zone,
        size=parse_size("8vcpu/32GiB"),
        nats_url="nats://127.0.0.1:4222",
        state_dir=tmp_path / 'a "quoted" folder',
    )
    settings = read_settings(path)
    assert (settings.node, settings.region, settings.zone) == ("n1", "us-east-1", zone)
    assert settings.state_dir == str(tmp_path / 'a "quoted" folder')
    assert (settings.capacity.vcpu, settings.capacity.memory_mib) == (8, 32_768)
    assert set(settings.served_types(ec2_catalogue())) == set(SERVED_TYPES)


def test_a_node_of_real_guests_has_images_and_key_pairs_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    write_agent_config(
        path,
        node="n1",
        region="us-east-1",
        zone=None,
        size=parse_size("2vcpu/2GiB"),
        nats_url="nats://127.0.0.1:4222",
        state_dir=tmp_path / "state",
        images=tmp_path / "images.toml",
    )
    settings = read_settings(path)
    assert settings.driver == "qemu"
    assert settings.images.catalogue == str(tmp_path / "images.toml")
    assert settings.key_pairs_dir == str(tmp_path / "keys")
