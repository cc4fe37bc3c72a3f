"""Every wire message between the functions and the agents: versioned JSON, both ways.

Agents are upgraded later than Lambdas, so a reader accepts its own version and the one
before, and ignores fields that it doesn't know. A field that a version has gained is UNSET in what
an older side has written. A change that an older reader would
misunderstand raises VERSION; a golden file per version holds its bytes (tests/golden/messages).
What a launch needs before its body is decoded (id, attempt, expiry) travels in headers.
This module is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec

from fleetcast.capacity import Resources
from fleetcast.errors import InvalidMessage, UnsupportedMessageVersion
from fleetcast.subjects import (
    HEADER_ATTEMPT,
    HEADER_EXPIRES_AT,
    HEADER_LAUNCH_ID,
    HEADER_SENT_AT,
    HEADER_TRACEPARENT,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1
SUPPORTED_VERSIONS: Final = (1,)
# By how much the clocks of a function and a node may differ.
CLOCK_SKEW_ALLOWANCE_MS: Final = 500
MAX_LEASE_MS: Final = 60_000
MAX_ROOT_DISK_GIB: Final = 16_384  # as EC2's general purpose volumes

# The state reason of an instance that its launch has given up: it was never the launch's.
GIVEN_UP: Final = "Server.LaunchGivenUp"

# Ids and types become file names and log fields on the nodes, so a reader takes nothing else.
INSTANCE_ID_PATTERN: Final = r"i-[0-9a-f]{8,17}"
InstanceId: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{INSTANCE_ID_PATTERN}\Z")]
LaunchId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^r-[0-9a-f]{8,17}\Z")]
Attempt: TypeAlias = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
LaunchIndex: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
InstanceTypeName: TypeAlias = Annotated[str, msgspec.Meta(max_length=128)]
EpochMs: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Percent: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=100)]

InstanceState: TypeAlias = Literal[
    "pending", "running", "shutting-down", "terminated", "stopping", "stopped"
]
ShutdownBehavior: TypeAlias = Literal["stop", "terminate"]
CordonState: TypeAlias = Literal["open", "cordoned", "draining"]
RootDiskGiB: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_ROOT_DISK_GIB)]
LeaseMs: TypeAlias = Annotated[int, msgspec.Meta(gt=0, le=MAX_LEASE_MS)]


# gc=False: a burst makes many, and nothing in them leads back to them.
class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every wire message carries."""

    v: int = VERSION


class LaunchHeaders(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "launch_id": HEADER_LAUNCH_ID,
        "attempt": HEADER_ATTEMPT,
        "expires_at_ms": HEADER_EXPIRES_AT,
        "sent_at_ms": HEADER_SENT_AT,
        "traceparent": HEADER_TRACEPARENT,
    },
):
    """The headers of a launch request.

    launch_id: the reservation id, r-…. attempt: the fencing number, from 1.
    sent_at_ms, expires_at_ms: epoch milliseconds by the requester's clock, when the request left
    and after which nobody may act on it; sent_at_ms is None from an older requester.
    """

    launch_id: LaunchId
    attempt: Attempt
    expires_at_ms: EpochMs
    sent_at_ms: EpochMs | None = None
    traceparent: str | None = None

    def encode(self) -> dict[str, str]:
        """Return the NATS headers."""
        headers = {
            HEADER_LAUNCH_ID: self.launch_id,
            HEADER_ATTEMPT: str(self.attempt),
            HEADER_EXPIRES_AT: str(self.expires_at_ms),
        }
        if self.sent_at_ms is not None:
            headers[HEADER_SENT_AT] = str(self.sent_at_ms)
        if self.traceparent is not None:
            headers[HEADER_TRACEPARENT] = self.traceparent
        return headers

    @classmethod
    def decode(cls, headers: Mapping[str, str] | None) -> LaunchHeaders:
        """Read the NATS headers of a launch request. Raises InvalidMessage."""
        try:
            return msgspec.convert(headers or {}, cls, strict=False)  # a header's number is text
        except msgspec.MsgspecError as problem:
            raise InvalidMessage(f"launch headers: {problem}") from problem


# --- launching -----------------------------------------------------------------------------


class InstanceToLaunch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One instance of a launch. launch_index: EC2's AmiLaunchIndex."""

    instance_id: InstanceId
    launch_index: LaunchIndex


class LaunchRequest(Message, frozen=True, kw_only=True):
    """Asks an agent to launch as many of `instances` as it has room for, in their order.

    hold_ms: only hold them, for so long; what is not committed by then is given up. UNSET: boot.
    root_disk_gib: UNSET: as large as the image.
    """

    account_id: str
    instances: Annotated[tuple[InstanceToLaunch, ...], msgspec.Meta(min_length=1)]
    instance_type: InstanceTypeName
    image_id: str
    user_data_base64: str | None = None
    key_name: str | None = None
    shutdown_behavior: ShutdownBehavior = "stop"
    tags: dict[str, str] = {}
    hold_ms: LeaseMs | msgspec.UnsetType = msgspec.UNSET
    root_disk_gib: RootDiskGiB | msgspec.UnsetType = msgspec.UNSET

    def __repr__(self) -> str:
        """Leave out what the user gave in confidence: a repr ends up in logs."""
        ids = [instance.instance_id for instance in self.instances]
        return f"LaunchRequest(v={self.v}, instance_type={self.instance_type!r}, instances={ids})"


class Accepted(Message, frozen=True, kw_only=True, tag_field="outcome", tag="accepted"):
    """These instances are reserved and journaled on `node`; the others still need a place."""

    node: str
    zone: str | None
    instance_ids: tuple[InstanceId, ...]


class Rejected(Message, frozen=True, kw_only=True, tag_field="outcome", tag="rejected"):
    """Nothing was launched.

    full: a lost race, ask again. node_fault: this node can't. client_fault: every node would
    say so; `code` is the EC2 error code then.
    """

    node: str
    reason: Literal["full", "node_fault", "client_fault"]
    code: str = ""
    message: str = ""


LaunchReply: TypeAlias = Accepted | Rejected


# --- asking one node -----------------------------------------------------------------------


class InstancesRequest(Message, frozen=True, kw_only=True):
    """Names the instances that a node action is about."""

    instance_ids: tuple[InstanceId, ...]


class AttemptRequest(Message, frozen=True, kw_only=True):
    """Names instances of one launch as held under a fencing number: Commit, Release, CancelLaunch.

    Commit: boot those that are held under exactly this attempt. Release and CancelLaunch: give up
    those that are held under this attempt or an older one, and never accept them under such again.
    expires_at_ms: epoch milliseconds after which nobody may act on it; UNSET: never, for the launch
    is decided.
    """

    launch_id: LaunchId
    attempt: Attempt
    instance_ids: Annotated[tuple[InstanceId, ...], msgspec.Meta(min_length=1)]
    expires_at_ms: EpochMs | msgspec.UnsetType = msgspec.UNSET


class InstanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of one instance it holds.

    account_id: whose it is. held: it waits for Commit and will not boot without.
    private_ip_address, mac_address: UNSET if it is in no network.
    """

    instance_id: InstanceId
    launch_id: LaunchId
    attempt: Attempt
    instance_type: str
    state: InstanceState
    state_reason_code: str | None = None
    state_reason_message: str | None = None
    account_id: str | msgspec.UnsetType = msgspec.UNSET
    held: bool | msgspec.UnsetType = msgspec.UNSET
    private_ip_address: str | msgspec.UnsetType = msgspec.UNSET
    mac_address: str | msgspec.UnsetType = msgspec.UNSET


class InstancesReply(Message, frozen=True, kw_only=True):
    """The reports asked for. An instance that is absent is not on this node.

    refused: why what was asked for was not done, by instance; full: there is no room to start it,
    state: it is in no state for it.
    """

    node: str
    instances: tuple[InstanceReport, ...]
    zone: str | msgspec.UnsetType | None = msgspec.UNSET
    refused: dict[InstanceId, Literal["full", "state"]] | msgspec.UnsetType = msgspec.UNSET


class ConsoleReply(Message, frozen=True, kw_only=True):
    """The last of what an instance has written to its console.

    output_base64: None if the node doesn't hold the instance. written_at_ms: when it last wrote.
    """

    node: str
    output_base64: str | None
    written_at_ms: EpochMs | None = None


class CordonRequest(Message, frozen=True, kw_only=True):
    """Closes a node to launches (Cordon), or opens it again (Uncordon)."""


class DrainRequest(Message, frozen=True, kw_only=True):
    """Closes a node to launches until nothing uses it any more, and tells what still does.

    stop: stop what runs, instead of waiting for its end. only_look: change nothing.
    """

    stop: bool = False
    only_look: bool = False


class CordonReply(Message, frozen=True, kw_only=True):
    """What Cordon, Uncordon and Drain have made of a node.

    closed: why it takes no launches, or None. instances: those that use it. stopped_n: how many
    more are on it, stopped. problem: why it will not be so after a restart of its agent, or "".
    """

    node: str
    state: CordonState
    closed: str | None
    instances: tuple[InstanceReport, ...]
    stopped_n: Annotated[int, msgspec.Meta(ge=0)]
    problem: str = ""


# --- asking every agent of a region --------------------------------------------------------


class LaunchPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What of a launch nodes may refuse, whatever room they have."""

    instance_type: InstanceTypeName
    image_id: str
    key_name: str | None = None
    root_disk_gib: RootDiskGiB | msgspec.UnsetType = msgspec.UNSET

    def request(self) -> LaunchRequest:
        """Return the request for none of such instances."""
        return LaunchRequest(
            account_id="",
            instances=(),
            instance_type=self.instance_type,
            image_id=self.image_id,
            key_name=self.key_name,
            root_disk_gib=self.root_disk_gib,
        )


class LaunchFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node would refuse a launch.

    code: EC2's error code, if every node would refuse it; None: this one can't, others may.
    """

    code: str | None
    message: str


class RegionRequest(Message, frozen=True, kw_only=True):
    """Asks every agent of a region for its reply to DescribeCapacity, Inventory or the like.

    preview: DescribeCapacity says too whether such a launch would be refused.
    """

    preview: LaunchPreview | msgspec.UnsetType = msgspec.UNSET


class LocateRequest(Message, frozen=True, kw_only=True):
    """Asks every agent of a region which instances of a launch it holds or has ended."""

    launch_id: LaunchId


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a node is: its host's utilisation of late, and what it runs.

    disk_utilization: of the file system that guests are on. None: not measured.
    """

    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    gpu_utilization: Percent | None = None
    running_instances: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    disk_utilization: Percent | msgspec.UnsetType | None = msgspec.UNSET


class CapacityReply(Message, frozen=True, kw_only=True):
    """What a node has and how many more of each type fit.

    closed: why the node takes no launches, or None. room: only types with room.
    armed: launches that the NATS server may still deliver, by subject. version: the agent's.
    now_ms: epoch milliseconds by the node's clock. accelerator: what runs its guests' CPUs, kvm or
    tcg; None: nothing, they are simulated. fault: why the launch that was previewed would be
    refused.
    """

    node: str
    zone: str | None
    closed: str | None
    total: Resources
    free: Resources
    room: dict[str, int]
    armed: dict[str, int]
    load: NodeLoad | msgspec.UnsetType = msgspec.UNSET
    version: str | msgspec.UnsetType = msgspec.UNSET
    now_ms: EpochMs | msgspec.UnsetType = msgspec.UNSET
    accelerator: str | msgspec.UnsetType | None = msgspec.UNSET
    fault: LaunchFault | msgspec.UnsetType = msgspec.UNSET


class InstanceTypesReply(Message, frozen=True, kw_only=True):
    """The instance types that a node serves, whether or not it has room for them now.

    room: how many more of each fit; only types with room.
    """

    node: str
    zone: str | None
    instance_types: tuple[str, ...]
    room: dict[str, int]


# --- bytes ---------------------------------------------------------------------------------


class _VersionOnly(msgspec.Struct):
    v: int | None = None


_M = TypeVar("_M")
_encoder: Final = msgspec.json.Encoder()
_version_decoder: Final = msgspec.json.Decoder(_VersionOnly)
_launch_reply_decoder: Final[msgspec.json.Decoder[LaunchReply]] = msgspec.json.Decoder(
    Accepted | Rejected,
)


def encode(message: Message) -> bytes:
    """Return the message as JSON."""
    return _encoder.encode(message)


def decode(payload: bytes, kind: type[_M]) -> _M:
    """Read a message of one kind.

    Raises UnsupportedMessageVersion for a version that this reader doesn't know, and
    InvalidMessage for anything else that isn't such a message.
    """
    _check_version(payload)
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise InvalidMessage(f"not a {kind.__name__}: {problem}") from problem


def decode_launch_reply(payload: bytes) -> LaunchReply:
    """Read an agent's answer to a launch request. Raises as `decode`."""
    _check_version(payload)
    try:
        return _launch_reply_decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise InvalidMessage(f"not a launch reply: {problem}") from problem


def _check_version(payload: bytes) -> None:
    # Before the body: a newer version may have changed any field's form.
    try:
        version = _version_decoder.decode(payload).v
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise InvalidMessage(f"not a message: {problem}") from problem
    if version not in SUPPORTED_VERSIONS:
        raise UnsupportedMessageVersion(version, supported=SUPPORTED_VERSIONS)
