"""What DescribeInstanceTypes answers: instance types as EC2 describes them. Pure.

A type is a size to a fleet: vCPUs, memory, GPUs and architecture are what a guest gets. What EC2's
hardware has beyond that (EBS, ENA, placement groups, credits) no node has, and it says so; clients
such as Terraform step into these structures without looking whether they are there.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import InvalidParameterValue
from fleetcast.instance_types import InstanceType
from lambdas.run_instances.filters import Filter, filter_test

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lambdas.run_instances.descriptions import Result
    from lambdas.run_instances.filters import Property

MIN_PAGE_TYPES: Final = 5
MAX_PAGE_TYPES: Final = 100


class ListingParameters(msgspec.Struct, frozen=True, rename="pascal"):
    """DescribeInstanceTypes' parameters."""

    instance_types: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    max_results: int | None = None
    next_token: str | None = None
    dry_run: bool = False


class ServedType(msgspec.Struct, frozen=True, kw_only=True):
    """A type that some node serves. has_room: one of them has room for it now."""

    instance_type: InstanceType
    has_room: bool


def _word(*, yes: bool) -> str:
    return "true" if yes else "false"


# The same for every type: what its description says.
_FLAGS: Final[Mapping[str, tuple[str, bool]]] = {
    "auto-recovery-supported": ("AutoRecoverySupported", False),
    "bare-metal": ("BareMetal", False),
    "burstable-performance-supported": ("BurstablePerformanceSupported", False),
    "current-generation": ("CurrentGeneration", True),
    "dedicated-hosts-supported": ("DedicatedHostsSupported", False),
    "free-tier-eligible": ("FreeTierEligible", False),
    "hibernation-supported": ("HibernationSupported", False),
    "instance-storage-supported": ("InstanceStorageSupported", False),
}
_USAGE_CLASSES: Final = ("on-demand",)
# EC2's word for a root that outlives a stop.
_ROOT_DEVICE_TYPES: Final = ("ebs",)
_VIRTUALIZATION_TYPES: Final = ("hvm",)

_PROPERTIES: Final[Mapping[str, Property[ServedType]]] = {
    "fleetcast:has-room": lambda served: (_word(yes=served.has_room),),
    "instance-type": lambda served: (served.instance_type.name,),
    "memory-info.size-in-mib": lambda served: (str(served.instance_type.memory_mib),),
    "processor-info.supported-architecture": lambda served: served.instance_type.architectures,
    "supported-root-device-type": lambda _: _ROOT_DEVICE_TYPES,
    "supported-usage-class": lambda _: _USAGE_CLASSES,
    "supported-virtualization-type": lambda _: _VIRTUALIZATION_TYPES,
    "vcpu-info.default-vcpus": lambda served: (str(served.instance_type.vcpu),),
}


def listing_result(served: Iterable[ServedType], asked: ListingParameters) -> Result:
    """Return DescribeInstanceTypes' answer out of all types that are served.

    Raises InvalidParameterValue.
    """
    page_types = _page_types(asked)
    passes = filter_test(asked.filters, _property_named)
    after = "" if asked.next_token is None else _name_of_token(asked.next_token)
    chosen = sorted(
        (
            one
            for one in served
            if _is_asked_for(one, asked.instance_types)
            and one.instance_type.name > after
            and passes(one)
        ),
        key=lambda one: one.instance_type.name,
    )
    page = chosen[:page_types]
    return {
        "InstanceTypes": [_description(one.instance_type) for one in page],
        "NextToken": _token(page[-1]) if len(chosen) > len(page) else None,
    }


def _is_asked_for(served: ServedType, names: Collection[str]) -> bool:
    return not names or served.instance_type.name in names


def _property_named(filter_name: str) -> Property[ServedType] | None:
    if filter_name in _FLAGS:
        _, value = _FLAGS[filter_name]
        return lambda _: (_word(yes=value),)
    return _PROPERTIES.get(filter_name)


def _page_types(asked: ListingParameters) -> int:
    if asked.max_results is None:
        return MAX_PAGE_TYPES
    if not MIN_PAGE_TYPES <= asked.max_results <= MAX_PAGE_TYPES:
        raise InvalidParameterValue(
            f"Value ( {asked.max_results} ) for parameter maxResults is invalid. Expecting a value "
            f"from {MIN_PAGE_TYPES} to {MAX_PAGE_TYPES}.",
        )
    return asked.max_results


def _token(served: ServedType) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(served.instance_type.name)).decode()


def _name_of_token(token: str) -> str:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=str)
    except ValueError as error:  # msgspec's and binascii's errors are ValueErrors
        raise InvalidParameterValue("Unable to parse pagination token") from error


def _description(instance_type: InstanceType) -> Result:
    return {
        "InstanceType": instance_type.name,
        **dict(_FLAGS.values()),
        "SupportedUsageClasses": list(_USAGE_CLASSES),
        "SupportedRootDeviceTypes": list(_ROOT_DEVICE_TYPES),
        "SupportedVirtualizationTypes": list(_VIRTUALIZATION_TYPES),
        "ProcessorInfo": {"SupportedArchitectures": list(instance_type.architectures)},
        "VCpuInfo": {"DefaultVCpus": instance_type.vcpu},
        "MemoryInfo": {"SizeInMiB": instance_type.memory_mib},
        "EbsInfo": {
            "EbsOptimizedSupport": "unsupported",
            "EncryptionSupport": "unsupported",
            "NvmeSupport": "unsupported",
        },
        "NetworkInfo": {"EnaSupport": "unsupported", "EfaSupported": False},
        "GpuInfo": _gpu_info(instance_type),
        "PlacementGroupInfo": {"SupportedStrategies": []},
    }


def _gpu_info(instance_type: InstanceType) -> Result | None:
    """Return EC2's GpuInfo; how much memory a GPU has the catalogue doesn't know."""
    if not instance_type.gpus:
        return None
    return {
        "Gpus": [
            {
                "Name": instance_type.gpu_name,
                "Manufacturer": instance_type.gpu_manufacturer,
                "Count": instance_type.gpus,
                "MemoryInfo": {},
            }
        ]
    }
