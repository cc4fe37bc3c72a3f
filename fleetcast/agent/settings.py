"""The agent's configuration file, agent.toml.

node = "n1"
region = "us-east-1"
zone = "us-east-1a"                 # optional
state_dir = "/var/lib/fleetcast"
driver = "qemu"                     # or "simulated"
key_pairs_dir = "/etc/fleetcast/keys"   # optional; NAME.pub there is the key pair NAME
families = ["t3", "m8a"]            # every type of these families
instance_types = ["c7g.large"]      # and these
serve = "all"                       # or all types of an architecture that the host can hold
architecture = "x86_64"             # optional: the host's own
cpu_manufacturers = ["AMD"]         # optional: only types by these: Intel, AMD, AWS

[nats]
url = "tls://nats.us-east-1.example.com:4222"
credentials_file = "/etc/fleetcast/node.creds"   # optional

[capacity]                          # optional: no more than this of the host
vcpu = 8
memory_mib = 32768

[gpus]
passthrough = true                  # optional: guests get those bound to vfio-pci, whole

[telemetry]
prometheus_port = 9108              # optional: metrics, on loopback only

[images]                            # optional, for drivers that boot them
catalogue = "/etc/fleetcast/images.toml"
region_catalogue = "https://images.example.com/images.toml"   # or s3://bucket/key
cache_gib = 50                      # what fetched images may take of the disk

[qemu]                              # optional, for driver = "qemu"
shutdown_timeout_s = 60             # what a guest that is stopped may take
bridge = "br0"                      # guests on the host's bridge, not each in its own network

[[own_instance_types]]              # types that EC2 doesn't have
name = "m8a.nano"
vcpu = 1
memory_mib = 512
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from fleetcast.agent.capacity.settings import CapacitySettings, GpuSettings
from fleetcast.agent.drivers.qemu.settings import QemuSettings
from fleetcast.agent.images.settings import ImagesSettings
from fleetcast.agent.setting_types import AbsolutePath
from fleetcast.agent.toml_lines import line_of, placed, read_toml
from fleetcast.configuration import read_struct
from fleetcast.errors import InvalidConfiguration, InvalidSubjectToken, UnknownInstanceType
from fleetcast.instance_types import Catalogue, InstanceType, ec2_catalogue
from fleetcast.nats_access import check_nats_url
from fleetcast.subjects import check_node, check_place

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST_NAME: Final = 64  # as Linux allows for a host's
_Node = Annotated[
    str,
    msgspec.Meta(
        max_length=_LONGEST_NAME,
        description=f'a name of at most {_LONGEST_NAME} characters, such as "n1"',
    ),
]
_Place = Annotated[
    str,
    msgspec.Meta(
        max_length=_LONGEST_NAME,
        description=f'a name of at most {_LONGEST_NAME} characters, such as "us-east-1"',
    ),
]
_Family = Annotated[str, msgspec.Meta(description='a family, such as "t3"')]
_TypeName = Annotated[str, msgspec.Meta(description='an instance type, such as "t3.nano"')]
_Url = Annotated[str, msgspec.Meta(description="tls://host:port (nats:// on loopback only)")]


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the region's NATS is. url: tls://host:port; nats://host:port on loopback."""

    url: _Url
    credentials_file: AbsolutePath | None = None

    def __post_init__(self) -> None:
        """Refuse a URL that would carry launches in the clear, or that holds a secret."""
        check_nats_url(self.url, key="url", credentials_key="credentials_file")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the node tells of itself. prometheus_port: on loopback; None: nothing is served."""

    prometheus_port: (
        Annotated[int, msgspec.Meta(ge=1, le=65_535, description="a port, from 1 to 65535")] | None
    ) = None


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told at start. Raises InvalidConfiguration with the key."""

    node: _Node
    region: _Place
    zone: _Place | None = None
    state_dir: AbsolutePath
    driver: Literal["simulated", "qemu"]
    key_pairs_dir: AbsolutePath | None = None
    families: tuple[_Family, ...] = ()
    instance_types: tuple[_TypeName, ...] = ()
    nats: Annotated[NatsSettings, msgspec.Meta(description="a section [nats] with url")]
    serve: Annotated[Literal["all"], msgspec.Meta(description='"all"')] | None = None
    architecture: Literal["x86_64", "arm64"] | None = None
    cpu_manufacturers: tuple[Literal["Intel", "AMD", "AWS"], ...] = ()
    capacity: CapacitySettings = CapacitySettings()
    gpus: GpuSettings = GpuSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    own_instance_types: tuple[InstanceType, ...] = ()
    images: ImagesSettings = ImagesSettings()
    qemu: QemuSettings = QemuSettings()

    def __post_init__(self) -> None:
        """Refuse names that can't stand in a NATS subject, and what would have no effect."""
        _check_token("node", self.node, "letters, digits, '-' and '_'")
        _check_token("region", self.region, "a-z, 0-9 and '-'")
        if self.zone is not None:
            _check_token("zone", self.zone, "a-z, 0-9 and '-'")
        if not self.families and not self.instance_types and self.serve is None:
            raise InvalidConfiguration(
                "families",
                "and instance_types are both empty: the node would serve nothing",
                expected='at least one, e.g. families = ["t3"], or serve = "all"',
            )
        if self.cpu_manufacturers and self.serve is None:
            raise InvalidConfiguration(
                "cpu_manufacturers",
                "has no effect on families and instance_types",
                expected='serve = "all" with it',
            )

    @property
    def is_simulated(self) -> bool:
        """Whether its guests take nothing of the host."""
        return self.driver == "simulated"

    def served_types(self, ec2_types: Catalogue) -> dict[str, InstanceType]:
        """Return the types that this node is to serve, as far as its host can, by name.

        Raises InvalidConfiguration for a family or type that nobody knows.
        """
        catalogue = ec2_types.with_types(self.own_instance_types, key="own_instance_types")
        served = {}
        if self.serve == "all":
            makers = (None, *self.cpu_manufacturers)
            served = {
                one.name: one
                for one in catalogue
                if not self.cpu_manufacturers or one.cpu_manufacturer in makers
            }
        for at, family in enumerate(self.families):
            members = {one.name: one for one in catalogue if one.family == family}
            if not members:
                raise InvalidConfiguration(
                    f"families[{at}]",
                    f"{family!r} is no family of EC2's or of own_instance_types",
                    expected="a family such as t3",
                )
            served |= members
        for at, name in enumerate(self.instance_types):
            try:
                served[name] = catalogue.lookup(name)
            except UnknownInstanceType as unknown:
                raise InvalidConfiguration(
                    f"instance_types[{at}]",
                    str(unknown),
                    expected="a type of EC2's or of own_instance_types",
                ) from unknown
        return served


def read_settings(path: Path) -> AgentSettings:
    """Read agent.toml. Raises InvalidConfiguration naming the file, the line and the key."""
    values, text = read_toml(_read(path), source=str(path), expected='lines such as node = "n1"')
    try:
        settings = read_struct(values, AgentSettings)
        settings.served_types(ec2_catalogue())
    except InvalidConfiguration as problem:
        raise placed(problem, text, source=str(path)) from problem
    return settings


def placed_in_file(problem: InvalidConfiguration, path: Path) -> InvalidConfiguration:
    """Return an error that turned up later with the line of agent.toml that it is about, if any."""
    text = _read(path).decode(errors="replace")
    return placed(problem, text, source=str(path)) if line_of(text, problem.key) else problem


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        expected = "the agent's configuration"
        if isinstance(problem, PermissionError):
            expected += ", read by root (sudo) or the agent's user"
        raise InvalidConfiguration(
            str(path), f"can't be read: {problem.strerror}", expected=expected
        ) from problem


def _check_token(key: str, value: str, allowed: str) -> None:
    try:
        check_node(value) if key == "node" else check_place(value, key)
    except InvalidSubjectToken as problem:
        raise InvalidConfiguration(key, f"is {value!r}", expected=f"only {allowed}") from problem
