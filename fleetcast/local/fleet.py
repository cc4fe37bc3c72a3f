"""The nodes of a local fleet: how many, how large, in which regions, and what they serve.

FLEET=us-east-1=3x8vcpu/32GiB,eu-west-1=2x4vcpu/16GiB means three nodes of 8 vCPU and 32 GiB in
one region and two smaller ones in another. A region's nodes take turns in three zones, named as
AWS names them. This module is pure but for writing agent.toml.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fleetcast.errors import InvalidConfiguration, InvalidSubjectToken
from fleetcast.instance_types import InstanceType
from fleetcast.subjects import check_place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAMILIES: Final = ("t3", "m8a")
SIZES: Final = ("nano", "micro", "small", "medium", "large", "xlarge", "2xlarge")
SERVED_TYPES: Final = tuple(f"{family}.{size}" for family in FAMILIES for size in SIZES)
# EC2's m8a begins at medium.
OWN_INSTANCE_TYPES: Final = (
    InstanceType(name="m8a.nano", vcpu=1, memory_mib=512),
    InstanceType(name="m8a.micro", vcpu=1, memory_mib=1024),
    InstanceType(name="m8a.small", vcpu=1, memory_mib=2048),
)
DEFAULT_FLEET: Final = "us-east-1=3x8vcpu/32GiB,eu-west-1=1x8vcpu/32GiB"
MAX_NODES: Final = 100  # each is a process of some 40 MB
_VCPU_PER_CORE: Final = 16
_ZONE_LETTERS: Final = "abc"

_MIB_PER_UNIT: Final = {"MiB": 1, "GiB": 1024}
_SIZE: Final = re.compile(r"([1-9]\d*)vcpu/([1-9]\d*)(MiB|GiB)")
_GROUP: Final = re.compile(r"([^=]+)=([1-9]\d*)x(.+)")


@dataclass(frozen=True, kw_only=True)
class NodeSize:
    """What instances may use of one node."""

    vcpu: int
    memory_mib: int


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes of one size in one region.

    nodes: their names, unlike any other's in the fleet. zones: each node's, in the same order; None
    for a node outside any.
    """

    region: str
    nodes: tuple[str, ...]
    zones: tuple[str | None, ...]
    size: NodeSize


def parse_size(text: str, *, key: str = "size") -> NodeSize:
    """Read a node's size, e.g. ``8vcpu/32GiB``. Raises InvalidConfiguration with the key."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InvalidConfiguration(
            key, f"{text!r} is no node size", expected="e.g. 8vcpu/32GiB (or 8vcpu/512MiB)"
        )
    vcpu, memory, unit = match.groups()
    return NodeSize(vcpu=int(vcpu), memory_mib=int(memory) * _MIB_PER_UNIT[unit])


def parse_fleet(text: str, *, key: str = "FLEET") -> tuple[NodeGroup, ...]:
    """Read a fleet. A region may come more than once, with nodes of another size.

    Raises InvalidConfiguration that says which part is wrong and shows the right form.
    """
    groups: list[NodeGroup] = []
    nodes_by_region: dict[str, int] = {}
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if match is None:
            raise InvalidConfiguration(
                key,
                f"{part.strip()!r} is no group of nodes",
                expected=f"REGION=COUNTxSIZE, joined by commas, e.g. {DEFAULT_FLEET}",
            )
        region, count, size = match.groups()
        try:
            check_place(region, "region")
        except InvalidSubjectToken as problem:
            raise InvalidConfiguration(
                key, str(problem), expected="a region such as us-east-1"
            ) from problem
        if sum(nodes_by_region.values()) + int(count) > MAX_NODES:
            raise InvalidConfiguration(
                key, "has too many nodes", expected=f"at most {MAX_NODES} in all"
            )
        first = nodes_by_region.get(region, 0) + 1
        nodes_by_region[region] = first + int(count) - 1
        numbers = range(first, nodes_by_region[region] + 1)
        groups.append(
            NodeGroup(
                region=region,
                nodes=tuple(f"{region}-{number}" for number in numbers),
                zones=tuple(f"{region}{_zone_letter(number)}" for number in numbers),
                size=parse_size(size, key=key),
            )
        )
    return tuple(groups)


def _zone_letter(number: int) -> str:
    return _ZONE_LETTERS[(number - 1) % len(_ZONE_LETTERS)]


def write_agent_config(
    path: Path,
    *,
    node: str,
    region: str,
    zone: str | None,
    size: NodeSize,
    nats_url: str,
    state_dir: Path,
    images: Path | None = None,
) -> None:
    """Write one agent's agent.toml.

    zone: None for a node outside any. images: the images.toml of a node that runs its guests in
    QEMU, with a folder keys beside it for key pairs; None: they are simulated.
    """
    keys = {} if images is None else {"key_pairs_dir": str(images.parent / "keys")}
    lines = [
        *_toml(
            node=node,
            region=region,
            **({} if zone is None else {"zone": zone}),
            state_dir=str(state_dir),
            driver="qemu" if images else "simulated",
            instance_types=SERVED_TYPES,
            **keys,
        ),
        *("[nats]", *_toml(url=nats_url)),
        *("[capacity]", *_toml(vcpu=size.vcpu, memory_mib=size.memory_mib)),
    ]
    if images:
        # However few cores this machine has: all its nodes share them.
        lines += [*_toml(vcpu_per_core=_VCPU_PER_CORE), "[images]", *_toml(catalogue=str(images))]
    for own in OWN_INSTANCE_TYPES:
        lines += [
            "[[own_instance_types]]",
            *_toml(name=own.name, vcpu=own.vcpu, memory_mib=own.memory_mib),
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(**values: str | int | tuple[str, ...]) -> Iterator[str]:
    # A JSON string, whole number or list of strings is TOML too.
    return (f"{key} = {json.dumps(value)}" for key, value in values.items())
