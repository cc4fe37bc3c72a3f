"""RunInstances' parameters: what EC2 demands of their values, beyond their types. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import (
    InvalidAMIIDMalformed,
    InvalidParameterValue,
    InvalidSubjectToken,
    MissingParameter,
    TagLimitExceeded,
    UnknownParameter,
)
from fleetcast.messages import ShutdownBehavior
from fleetcast.subjects import check_place
from lambdas.run_instances.root_disk import BlockDeviceMapping, RootDisk, root_disk

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

MAX_INSTANCES: Final = 1_000
MAX_USER_DATA_BYTES: Final = 16 * 1024  # before encoding
MAX_TAGS: Final = 50
MAX_TAG_KEY_CHARACTERS: Final = 127
MAX_TAG_VALUE_CHARACTERS: Final = 255

_IMAGE_ID: Final = re.compile(r"ami-(?:[0-9a-f]{8}|[0-9a-f]{17})")
_CLIENT_TOKEN: Final = re.compile(r"[ -~]{1,64}")
_KEY_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]")
_RESERVED_TAG_PREFIX: Final = "aws:"


class _Tag(msgspec.Struct, frozen=True, rename="pascal"):
    key: str = ""
    value: str = ""


class _TagSpecification(msgspec.Struct, frozen=True, rename="pascal"):
    resource_type: str = ""
    tags: tuple[_Tag, ...] = ()


class _Placement(msgspec.Struct, frozen=True, rename="pascal"):
    availability_zone: str | None = None


class _Monitoring(msgspec.Struct, frozen=True, rename="pascal"):
    enabled: bool = False


class _Request(msgspec.Struct, frozen=True, rename="pascal"):
    min_count: int
    max_count: int
    image_id: str = ""
    instance_type: str = ""
    key_name: str | None = None
    user_data: str = ""
    tag_specifications: tuple[_TagSpecification, ...] = ()
    client_token: str | None = None
    dry_run: bool = False
    block_device_mappings: tuple[BlockDeviceMapping, ...] = ()
    placement: _Placement = _Placement()
    instance_initiated_shutdown_behavior: str = "stop"
    disable_api_stop: bool = False
    disable_api_termination: bool = False
    ebs_optimized: bool = False
    monitoring: _Monitoring = _Monitoring()


class LaunchParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What to launch, checked.

    min_count, max_count: 1 to 1,000, min <= max. region, zone: launch there only. user_data:
    decoded, at most 16 KiB, empty if there is none; never logged.
    """

    image_id: str
    instance_type: str
    min_count: int
    max_count: int
    key_name: str | None = None
    user_data: bytes = b""
    tags: dict[str, str] = {}
    region: str | None = None
    zone: str | None = None
    shutdown_behavior: ShutdownBehavior = "stop"
    root_disk: RootDisk = RootDisk()
    client_token: str | None = None
    dry_run: bool = False

    def fingerprint(self) -> str:
        """Return a digest of all that a repeated ClientToken must repeat, as 64 hex digits.

        Defaults don't count, so that a field that is added later changes no earlier digest.
        """
        repeated = {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if name not in {"client_token", "dry_run"} and value != getattr(_DEFAULTS, name)
        }
        return hashlib.sha256(msgspec.json.encode(repeated, order="deterministic")).hexdigest()

    def __repr__(self) -> str:
        counts = f"{self.min_count}..{self.max_count}"
        return f"<LaunchParameters {self.instance_type} {self.image_id} {counts}>"


_DEFAULTS: Final = LaunchParameters(image_id="", instance_type="", min_count=0, max_count=0)


def launch_parameters(
    parameters: Mapping[str, object],
    *,
    instance_types: Container[str],
    regions: Container[str],
    region: str | None = None,
) -> LaunchParameters:
    """Check RunInstances' parameters, as ec2_protocol decodes them.

    There is no default instance type: EC2's is m1.small.
    instance_types: the names that can be launched. regions: the fleet's. region: the one whose
    endpoint was called, or None. Raises MissingParameter, UnknownParameter,
    InvalidParameterValue, InvalidBlockDeviceMapping, InvalidAMIID.Malformed and TagLimitExceeded.
    """
    request = msgspec.convert(parameters, _Request)
    _refuse_what_cannot_be_honoured(request)
    _check_counts(request.min_count, request.max_count)
    region, zone = _place(request.placement.availability_zone, region=region, regions=regions)
    return LaunchParameters(
        image_id=_image_id(request.image_id),
        instance_type=_instance_type(request.instance_type, instance_types),
        min_count=request.min_count,
        max_count=request.max_count,
        key_name=_matching(_KEY_NAME, request.key_name, "KeyName"),
        user_data=_user_data(request.user_data),
        tags=_tags(request.tag_specifications),
        region=region,
        zone=zone,
        shutdown_behavior=_shutdown_behavior(request.instance_initiated_shutdown_behavior),
        root_disk=root_disk(request.block_device_mappings),
        client_token=_matching(_CLIENT_TOKEN, request.client_token, "ClientToken"),
        dry_run=request.dry_run,
    )


def _refuse_what_cannot_be_honoured(request: _Request) -> None:
    """Refuse what nodes can't do, rather than launch something else than was asked for."""
    asked_for = {
        "DisableApiStop": request.disable_api_stop,
        "DisableApiTermination": request.disable_api_termination,
        "EbsOptimized": request.ebs_optimized,
        "Monitoring.Enabled": request.monitoring.enabled,
    }
    for name, asked in asked_for.items():
        if asked:
            raise UnknownParameter(name)


def _check_counts(min_count: int, max_count: int) -> None:
    for name, count in (("minCount", min_count), ("maxCount", max_count)):
        if not 1 <= count <= MAX_INSTANCES:
            raise InvalidParameterValue(
                f"Value ({count}) for parameter {name} is invalid. "
                f"It must be from 1 to {MAX_INSTANCES}.",
            )
    if min_count > max_count:
        raise InvalidParameterValue(
            f"Value ({min_count}) for parameter minCount is invalid. "
            f"It must not be greater than maxCount ({max_count}).",
        )


def _image_id(image_id: str) -> str:
    if not image_id:
        raise MissingParameter("ImageId")
    if not _IMAGE_ID.fullmatch(image_id):
        raise InvalidAMIIDMalformed(f'Invalid id: "{image_id}" (expecting "ami-...")')
    return image_id


def _instance_type(name: str, instance_types: Container[str]) -> str:
    if not name:
        raise MissingParameter("InstanceType")
    if name not in instance_types:
        raise InvalidParameterValue(f"Invalid value '{name}' for InstanceType.")
    return name


def _matching(pattern: re.Pattern[str], value: str | None, name: str) -> str | None:
    if value is not None and not pattern.fullmatch(value):
        raise InvalidParameterValue(f"Invalid value '{value}' for {name}.")
    return value


def _user_data(encoded: str) -> bytes:
    try:
        user_data = base64.b64decode(encoded, validate=True)
    except ValueError:
        # No cause: it would carry the caller's secret into a traceback.
        raise InvalidParameterValue("Invalid BASE64 encoding of user data") from None
    if len(user_data) > MAX_USER_DATA_BYTES:
        raise InvalidParameterValue(f"User data is limited to {MAX_USER_DATA_BYTES} bytes")
    return user_data


def _place(
    zone: str | None, *, region: str | None, regions: Container[str]
) -> tuple[str | None, str | None]:
    """Return the region and the zone to launch in only.

    A node outside any zone is shown with its region's name for one, so that name means the region.
    """
    if zone is None:
        return region, None
    invalid = InvalidParameterValue(f"Invalid availability zone: [{zone}]")
    try:
        check_place(zone, "zone")
    except InvalidSubjectToken as error:
        raise invalid from error
    if zone not in regions:
        return region, zone
    if region not in {None, zone}:
        raise invalid
    return zone, None


def _shutdown_behavior(value: str) -> ShutdownBehavior:
    match value:
        case "stop" | "terminate":
            return value
    raise InvalidParameterValue(
        f"Value ({value}) for parameter instanceInitiatedShutdownBehavior is invalid.",
    )


def _tags(specifications: Iterable[_TagSpecification]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for specification in specifications:
        if specification.resource_type != "instance":
            raise InvalidParameterValue(
                f"'{specification.resource_type}' is not a valid taggable resource type "
                "for this operation.",
            )
        for tag in specification.tags:
            _check_tag(tag)
            if tag.key in tags:
                raise InvalidParameterValue(f"Duplicate tag key '{tag.key}' specified.")
            tags[tag.key] = tag.value
    if len(tags) > MAX_TAGS:
        raise TagLimitExceeded(f"More than {MAX_TAGS} tags specified")
    return tags


def _check_tag(tag: _Tag) -> None:
    if not 1 <= len(tag.key) <= MAX_TAG_KEY_CHARACTERS:
        raise InvalidParameterValue(
            f"Tag keys must be 1 to {MAX_TAG_KEY_CHARACTERS} characters long",
        )
    if tag.key.lower().startswith(_RESERVED_TAG_PREFIX):
        raise InvalidParameterValue(
            f"Tag keys starting with '{_RESERVED_TAG_PREFIX}' are reserved for internal use",
        )
    if len(tag.value) > MAX_TAG_VALUE_CHARACTERS:
        raise InvalidParameterValue(
            f"Tag values must be at most {MAX_TAG_VALUE_CHARACTERS} characters long",
        )
    if _CONTROL_CHARACTER.search(tag.key + tag.value):
        raise InvalidParameterValue(f"The tag {tag.key!r} holds a control character")
