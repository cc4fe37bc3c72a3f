"""What DescribeInstances' filters compare. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lambdas.records import STATE_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lambdas.records import InstanceRecord
    from lambdas.run_instances.filters import Property

_TAG_PREFIX: Final = "tag:"

_PROPERTIES: Final[Mapping[str, Property[InstanceRecord]]] = {
    "architecture": lambda record: (record.architecture,),
    "availability-zone": lambda record: (record.availability_zone,),
    "client-token": lambda record: (record.client_token,),
    "host-id": lambda record: (record.node,),
    "image-id": lambda record: (record.image_id,),
    "instance-id": lambda record: (record.instance_id,),
    "instance-state-code": lambda record: (str(STATE_CODES[record.state]),),
    "instance-state-name": lambda record: (record.state,),
    "instance-type": lambda record: (record.instance_type,),
    "key-name": lambda record: (record.key_name,),
    "owner-id": lambda record: (record.account_id,),
    "private-ip-address": lambda record: (record.private_ip_address,),
    "reservation-id": lambda record: (record.reservation_id,),
    "root-device-name": lambda record: (record.root_device_name,),
    "tag-key": lambda record: record.tags,
}


def instance_property(filter_name: str) -> Property[InstanceRecord] | None:
    """Return what the filter of that name compares, or None if there is no such filter."""
    if filter_name.startswith(_TAG_PREFIX):
        key = filter_name.removeprefix(_TAG_PREFIX)
        return lambda record: (record.tags.get(key),)
    return _PROPERTIES.get(filter_name)
