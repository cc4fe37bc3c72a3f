"""What an instance of each type needs: EC2's types, and those a fleet defines itself.

This module owns the catalogue and the form of its data file, instance_types.json, which
`fleetcast catalogue refresh` writes from EC2's DescribeInstanceTypes. It is pure but for reading
that file: standard library and msgspec only.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fleetcast.errors import InvalidConfiguration, UnknownInstanceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EC2_CATALOGUE_PATH = Path(__file__).with_name("instance_types.json")

_NAME = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


class InstanceType(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one instance of a type needs of its host.

    name: exactly family.size, of the characters a-z, 0-9 and "-".
    vcpu: virtual CPUs, >= 1. memory_mib: >= 1. gpus: GPUs that the guest sees, >= 0; a slice of a
    GPU counts as one. gpu_name, gpu_manufacturer: as EC2 spells them, if it names them.
    architectures: at least one of EC2's words, e.g. x86_64 or arm64. cpu_manufacturer: Intel, AMD,
    AWS or Apple, if it is known. has_accelerators: whether it has others than GPUs, for inference,
    media, or to be programmed.
    Raises InvalidConfiguration, naming the field, for anything else.
    """

    name: str
    vcpu: int
    memory_mib: int
    gpus: int = 0
    gpu_name: str | None = None
    gpu_manufacturer: str | None = None
    architectures: tuple[str, ...] = ("x86_64",)
    cpu_manufacturer: str | None = None
    has_accelerators: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidConfiguration(
                "name", f"{self.name!r} is no instance type", expected="family.size, e.g. m8a.nano"
            )
        for field, value, least in (
            ("vcpu", self.vcpu, 1),
            ("memory_mib", self.memory_mib, 1),
            ("gpus", self.gpus, 0),
            ("architectures", len(self.architectures), 1),
        ):
            if value < least:
                raise InvalidConfiguration(
                    field, f"{self.name} has {value}", expected=f"at least {least}"
                )

    @property
    def family(self) -> str:
        """The part before the dot: m8a of m8a.nano."""
        return self.name.partition(".")[0]

    @property
    def size(self) -> str:
        """The part after the dot: nano of m8a.nano."""
        return self.name.partition(".")[2]


class Catalogue:
    """Instance types by name, in the order of their names. Never changes."""

    def __init__(self, instance_types: Iterable[InstanceType]) -> None:
        by_name = {instance_type.name: instance_type for instance_type in instance_types}
        self._by_name = dict(sorted(by_name.items()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[InstanceType]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def lookup(self, name: str) -> InstanceType:
        """Return the type of that name. Raises UnknownInstanceType."""
        try:
            return self._by_name[name]
        except KeyError:
            raise UnknownInstanceType(name) from None

    def with_types(self, own: Iterable[InstanceType], *, key: str = "instance_types") -> Catalogue:
        """Return a catalogue that also has a fleet's own types.

        key: where they stand in the configuration. Raises InvalidConfiguration when one gives a
        known name another meaning: a client that asks for m5.large must not get something else.
        Repeating a known type unchanged is allowed, as EC2 may add one that a fleet had first.
        """
        by_name = dict(self._by_name)
        for position, instance_type in enumerate(own):
            known = by_name.setdefault(instance_type.name, instance_type)
            # What EC2 says beyond a type's size need not be repeated.
            repeatable = msgspec.structs.replace(
                known, cpu_manufacturer=None, has_accelerators=False
            )
            if instance_type not in (known, repeatable):
                raise InvalidConfiguration(
                    f"{key}[{position}].name",
                    f"{instance_type.name} is already defined, otherwise than here",
                    expected="a name that no other type has",
                )
        return Catalogue(by_name.values())

    def to_json(self) -> bytes:
        """Encode as the data file: a JSON array with one type a line, so that diffs are read."""
        lines = b",\n".join(msgspec.json.encode(instance_type) for instance_type in self)
        return b"[\n" + lines + b"\n]\n"

    @classmethod
    def from_json(cls, encoded: bytes) -> Catalogue:
        """Decode a data file. Raises InvalidConfiguration for one that to_json didn't write."""
        try:
            return cls(msgspec.json.decode(encoded, type=list[InstanceType]))
        except msgspec.DecodeError as error:
            raise InvalidConfiguration(
                "instance_types.json",
                str(error),
                expected="what `fleetcast catalogue refresh` writes",
            ) from error


@cache
def ec2_catalogue() -> Catalogue:
    """Return all of EC2's instance types, read from the data file at the first call."""
    return Catalogue.from_json(EC2_CATALOGUE_PATH.read_bytes())
