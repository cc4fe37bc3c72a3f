"""What the control plane knows of an instance and of a node, as the functions pass it around.

How it is kept is no business of this module. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.capacity import Resources
from fleetcast.messages import InstanceState, ShutdownBehavior

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.messages import InstanceReport

TERMINATED_VISIBLE_S: Final = 3_600  # as EC2 shows them

# Source: EC2 API reference, InstanceState.
STATE_CODES: Final[Mapping[InstanceState, int]] = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}

# What a node's answer may move an instance on to. Nothing else in it is news: a node that hasn't
# heard yet of a stop, a start or a termination tells the state before.
NEXT_STATES: Final[Mapping[InstanceState, frozenset[InstanceState]]] = {
    "pending": frozenset({"running", "stopping", "stopped", "shutting-down", "terminated"}),
    "running": frozenset({"stopping", "stopped", "shutting-down", "terminated"}),
    "stopping": frozenset({"stopped", "shutting-down", "terminated"}),
    "stopped": frozenset({"pending", "running", "shutting-down", "terminated"}),
    "shutting-down": frozenset({"terminated"}),
    "terminated": frozenset(),
}


# As most images of EC2's call it.
ROOT_DEVICE_NAME: Final = "/dev/sda1"


class InstanceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One instance.

    launch_index: its place in the reservation, from 0. attempt: the fencing number; a node that
    holds the instance under an older one must give it up. region, zone, node: where it is, None
    until a node has accepted it. launched_at_s, terminated_at_s: epoch seconds. architecture: as
    EC2 names it (x86_64, arm64). private_ip_address, mac_address: as its node has said, None until
    then, or if it is in no network. state_reason_*: why it is stopping, stopped or terminated.
    shutdown_asked_at_s: when its owner last had it stopped or terminated, epoch seconds.
    unreachable_since_s: when its node was first asked in vain and has not answered since, epoch
    seconds; the state is the last one known then.
    """

    account_id: str
    reservation_id: str
    instance_id: str
    instance_type: str
    image_id: str
    architecture: str
    launch_index: int
    launched_at_s: float
    attempt: int = 1
    state: InstanceState = "pending"
    region: str | None = None
    zone: str | None = None
    node: str | None = None
    key_name: str | None = None
    tags: dict[str, str] = {}
    client_token: str | None = None
    shutdown_behavior: ShutdownBehavior = "stop"
    root_device_name: str = ROOT_DEVICE_NAME
    private_ip_address: str | None = None
    mac_address: str | None = None
    state_reason_code: str | None = None
    state_reason_message: str | None = None
    shutdown_asked_at_s: float | None = None
    terminated_at_s: float | None = None
    unreachable_since_s: float | None = None

    @property
    def availability_zone(self) -> str | None:
        """The zone as a client sees it: a node outside any zone stands for its whole region."""
        return self.zone or self.region


def followed(record: InstanceRecord, report: InstanceReport, *, now_s: float) -> InstanceRecord:
    """Return the record of an instance as its node's report makes it. now_s: epoch seconds.

    Whether the report is to be followed is the caller's to decide.
    """
    reason = report.state_reason_code
    return msgspec.structs.replace(
        record,
        state=report.state,
        state_reason_code=reason,
        # As EC2 words it, with its code in front.
        state_reason_message=reason and f"{reason}: {report.state_reason_message}",
        terminated_at_s=now_s if report.state == "terminated" else None,
        private_ip_address=report.private_ip_address or record.private_ip_address,
        mac_address=report.mac_address or record.mac_address,
    )


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a node said when it was last asked.

    last_seen_s: when that was, epoch seconds. closed: why it takes no launches, or None. version:
    the agent's. room: how many more of each type fit; only types with room. clock_skew_ms: how
    far its clock is ahead. instances_n: how many it holds, stopped ones too. None: never said.
    strays: instances without any record that it holds, and when each was first seen there.
    """

    region: str
    node: str
    last_seen_s: float
    zone: str | None = None
    closed: str | None = None
    version: str | None = None
    total: Resources | None = None
    free: Resources | None = None
    room: dict[str, int] = {}
    clock_skew_ms: int | None = None
    instances_n: int = 0
    strays: dict[str, float] = {}
