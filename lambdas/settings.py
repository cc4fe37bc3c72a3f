"""What each function is told at start, and how it stands in the environment.

A field ``fleet_table`` is the variable ``FLEETCAST_FLEET_TABLE``; text stands as it is, anything
else as JSON, and a long value compressed, for Lambda allows 4 KB in all. The CDK app writes the
environment with `encode_settings`, so that no name exists twice. This module is on the launch
path: it imports the core and msgspec only, and it reads no environment but the mapping that it is
given.
"""

import base64
import re
import zlib
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar, get_args, get_origin

import msgspec

from fleetcast.configuration import read_struct
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import InstanceType
from fleetcast.nats_access import check_nats_url
from fleetcast.scoring import DEFAULT_WEIGHTS, Weights
from fleetcast.selection import DEFAULT_TIE_BAND

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)

_PREFIX = "FLEETCAST_"
# Thirty regions take 6 KB as JSON, and less than 1 KB compressed.
_COMPRESS_FROM_CHARACTERS = 1024
_COMPRESSED = "zlib:"

RegionName = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,63}\Z", description="a name of a-z, 0-9 and -")
]
ResourceName = Annotated[str, msgspec.Meta(min_length=1, description="the name of a resource")]
Seconds = Annotated[float, msgspec.Meta(gt=0, description="a number of seconds above 0")]


class Region(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A region that launches can go to.

    nats_url: the region's own NATS, ``tls://host:port``; without TLS on loopback only.
    nats_credentials_secret: the Secrets Manager secret that holds the NATS credentials file, or
    None for a server that asks for none. job_stack_name: the CloudFormation stack in that AWS
    region whose output JobQueueUrl is the queue of waiting jobs. cluster_name: the cluster whose
    utilisation CloudWatch's ContainerInsights has. telemetry: whether load is read from these
    (cloud) or from what the region's own agents report (fleet).
    Raises InvalidConfiguration with the field's name.
    """

    name: RegionName
    nats_url: Annotated[str, msgspec.Meta(description="a URL, tls://host:port")]
    nats_credentials_secret: ResourceName | None = None
    job_stack_name: ResourceName | None = None
    cluster_name: ResourceName | None = None
    telemetry: Literal["cloud", "fleet"] = "cloud"

    def __post_init__(self) -> None:
        """Refuse a NATS URL that would carry credentials, or launches, in the clear."""
        check_nats_url(self.nats_url, key="nats_url", credentials_key="nats_credentials_secret")


def check_regions(regions: tuple[Region, ...], *, default_region: str) -> None:
    """Check what only shows when regions stand side by side.

    Raises InvalidConfiguration if there is none, a name comes twice, or the default isn't there.
    """
    if not regions:
        raise InvalidConfiguration("regions", "is empty", expected="at least one region")
    names: list[str] = []
    for at, region in enumerate(regions):
        if region.name in names:
            raise InvalidConfiguration(
                f"regions[{at}].name", f"{region.name!r} comes twice", expected="each region once"
            )
        names.append(region.name)
    if default_region not in names:
        raise InvalidConfiguration(
            "default_region", f"is {default_region!r}", expected=f"one of {', '.join(names)}"
        )


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a launch walks the regions.

    accept_timeout_s: how long one ask waits for a node's answer, before it is unknown.
    max_score_age_s: the age from which a score is stale. tie_band: regions whose score is within
    this of the best are equally good.
    """

    accept_timeout_s: Annotated[
        float, msgspec.Meta(gt=0, le=10, description="a number of seconds above 0, at most 10")
    ] = 1.0
    max_score_age_s: Seconds = 900.0
    tie_band: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="a score difference from 0 to 1")
    ] = DEFAULT_TIE_BAND


class RunInstancesSettings(LaunchOptions, frozen=True, kw_only=True):
    """What run_instances is told. instance_types: the fleet's own types, beside EC2's."""

    fleet_table: ResourceName
    region_scores_table: ResourceName
    regions: tuple[Region, ...]
    default_region: RegionName
    instance_types: tuple[InstanceType, ...] = ()

    def __post_init__(self) -> None:
        """Refuse regions that don't fit together."""
        check_regions(self.regions, default_region=self.default_region)

    @property
    def region_names(self) -> list[str]:
        """The names of all regions."""
        return [region.name for region in self.regions]


class ScoringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep scores.

    scored_instance_types: the types with a score of their own; any other is placed by the score
    that needs no type. score_ttl_s: how long a score stays in the table, far longer than it is
    fresh, for a stale one is better than none. spot_placement_pools: by scored type, the types
    that it is scored together with, instead of its siblings of equal size. *_refresh_s: for how
    long such a value is used before it is read again. history_ttl_s: how long sweeps are kept.
    """

    scored_instance_types: tuple[ResourceName, ...] = ()
    weights: Weights = DEFAULT_WEIGHTS
    score_ttl_s: Seconds = 86_400.0
    spot_placement_pools: dict[ResourceName, tuple[ResourceName, ...]] = {}
    spot_placement_refresh_s: Seconds = 21_600.0
    on_demand_refresh_s: Seconds = 86_400.0
    history_ttl_s: Seconds = 1_209_600.0


class ScoreRegionsSettings(ScoringOptions, frozen=True, kw_only=True):
    """What score_regions is told."""

    region_scores_table: ResourceName
    regions: tuple[Region, ...]


class ReconcileSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What reconcile is told. scored_instance_types: those whose room is published as a metric."""

    fleet_table: ResourceName
    regions: tuple[Region, ...]
    scored_instance_types: tuple[ResourceName, ...] = ()


class ReadApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What read_api is told; as RunInstancesSettings has it."""

    fleet_table: ResourceName
    region_scores_table: ResourceName
    regions: tuple[Region, ...]
    default_region: RegionName
    instance_types: tuple[InstanceType, ...] = ()
    weights: Weights = DEFAULT_WEIGHTS
    max_score_age_s: Seconds = LaunchOptions().max_score_age_s
    tie_band: float = DEFAULT_TIE_BAND

    def __post_init__(self) -> None:
        """Refuse regions that don't fit together."""
        check_regions(self.regions, default_region=self.default_region)


def environment_names(settings_type: type[msgspec.Struct]) -> dict[str, str]:
    """Map each field of a settings class to its environment variable."""
    return {
        field.name: _PREFIX + field.name.upper() for field in msgspec.structs.fields(settings_type)
    }


def encode_settings(settings: msgspec.Struct) -> dict[str, str]:
    """Write settings as environment variables. `decode_settings` reads them back unchanged."""
    return {
        variable: value if isinstance(value, str) else _compressed(msgspec.json.encode(value))
        for field, variable in environment_names(type(settings)).items()
        for value in (getattr(settings, field),)
    }


def _compressed(encoded: bytes) -> str:
    if len(encoded) < _COMPRESS_FROM_CHARACTERS:
        return encoded.decode()
    return _COMPRESSED + base64.b64encode(zlib.compress(encoded, 9)).decode()


def decode_settings(settings_type: type[SettingsT], environment: Mapping[str, str]) -> SettingsT:
    """Read settings from environment variables; those of other things are passed over.

    Raises InvalidConfiguration naming the variable, e.g. ``FLEETCAST_REGIONS[1].nats_url``.
    """
    names = environment_names(settings_type)
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(settings_type):
        variable = names[field.name]
        if variable in environment:
            raw = environment[variable]
            values[field.name] = raw if _is_text(field.type) else _decode_json(raw, key=variable)
    try:
        return read_struct(values, settings_type)
    except InvalidConfiguration as error:
        # "regions[1].nats_url" is FLEETCAST_REGIONS[1].nats_url out here.
        field_name = re.split(r"[.\[]", error.key, maxsplit=1)[0]
        raise InvalidConfiguration(
            names[field_name] + error.key[len(field_name) :],
            error.problem,
            expected=error.expected,
        ) from error


def _decode_json(raw: str, *, key: str) -> object:
    try:
        encoded = raw.encode()
        if raw.startswith(_COMPRESSED):
            encoded = zlib.decompress(base64.b64decode(raw.removeprefix(_COMPRESSED)))
        decoded: object = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, ValueError, zlib.error) as error:
        raise InvalidConfiguration(key, f"is no JSON: {error}", expected="JSON") from error
    return decoded


def _is_text(annotation: object) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    return annotation is str
