"""RunInstances' block device mappings: a node's guest has one disk, its root device. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import InvalidBlockDeviceMapping, InvalidParameterValue, MissingParameter
from fleetcast.messages import MAX_ROOT_DISK_GIB
from lambdas.records import ROOT_DEVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

# What images call their root device in EC2. A guest sees a virtio disk, whatever it is called here.
_ROOT_DEVICE_NAMES: Final = (ROOT_DEVICE_NAME, "/dev/xvda")
# The others have a throughput or a number of operations that somebody counts on.
_PLAIN_VOLUME_TYPES: Final = frozenset({"gp2", "gp3", "standard"})


class Ebs(msgspec.Struct, frozen=True, rename="pascal"):
    """What a mapping says of its volume; volume_size in GiB."""

    delete_on_termination: bool = True
    volume_size: int | None = None
    volume_type: str = "gp3"


class BlockDeviceMapping(msgspec.Struct, frozen=True, rename="pascal"):
    """One of RunInstances' BlockDeviceMapping.N."""

    device_name: str = ""
    ebs: Ebs = Ebs()


class RootDisk(msgspec.Struct, frozen=True, kw_only=True):
    """The root device as it was asked for. size_gib: None: as large as its image."""

    device_name: str = ROOT_DEVICE_NAME
    size_gib: int | None = None


def root_disk(mappings: Sequence[BlockDeviceMapping]) -> RootDisk:
    """Check the mappings of a launch.

    Raises InvalidBlockDeviceMapping, InvalidParameterValue and MissingParameter for what a node
    can't do, rather than launch something else than was asked for.
    """
    for number, mapping in enumerate(mappings, start=1):
        if not mapping.device_name:
            raise MissingParameter(f"BlockDeviceMapping.{number}.DeviceName")
        if mapping.device_name not in _ROOT_DEVICE_NAMES:
            raise InvalidBlockDeviceMapping(
                f"Invalid device name {mapping.device_name}: only the root device "
                f"({' or '.join(_ROOT_DEVICE_NAMES)}) can be mapped."
            )
        if number > 1:
            raise InvalidBlockDeviceMapping(
                f"The device '{mapping.device_name}' is used in more than one block-device mapping"
            )
        _check_volume(mapping.ebs)
    if not mappings:
        return RootDisk()
    return RootDisk(device_name=mappings[0].device_name, size_gib=mappings[0].ebs.volume_size)


def _check_volume(ebs: Ebs) -> None:
    if ebs.volume_type not in _PLAIN_VOLUME_TYPES:
        plain = ", ".join(sorted(_PLAIN_VOLUME_TYPES))
        raise InvalidParameterValue(
            f"Value ({ebs.volume_type}) for parameter volumeType is invalid. It must be one of "
            f"{plain}: the disk is its node's."
        )
    if not ebs.delete_on_termination:
        raise InvalidParameterValue(
            "Value (false) for parameter deleteOnTermination is invalid. The root disk goes with "
            "its instance."
        )
    if ebs.volume_size is not None and not 1 <= ebs.volume_size <= MAX_ROOT_DISK_GIB:
        raise InvalidParameterValue(
            f"Value ({ebs.volume_size}) for parameter volumeSize is invalid. It must be from 1 to "
            f"{MAX_ROOT_DISK_GIB} GiB."
        )
