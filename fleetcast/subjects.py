"""Every NATS subject, queue group and header, for both sides.

    ec2.RunInstances.{region}.{family}.{size}          launch anywhere in the region
    ec2.RunInstances.{region}.{family}.{size}.{zone}   launch pinned to a zone
    ec2.node.{region}.{node}.{action}                  one node, also when it is full
    ec2.region.{region}.{action}                       every agent of the region

Nobody else builds a subject from strings: a requester and an agent that disagree by one
character would look like a region without room. This module is pure.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from typing import Final

from fleetcast.errors import InvalidSubjectToken

LAUNCH_QUEUE_GROUP: Final = "fleetcast-workers"

HEADER_LAUNCH_ID: Final = "Fleetcast-Launch-Id"
HEADER_ATTEMPT: Final = "Fleetcast-Attempt"
HEADER_EXPIRES_AT: Final = "Fleetcast-Expires-At"
HEADER_SENT_AT: Final = "Fleetcast-Sent-At"
HEADER_TRACEPARENT: Final = "traceparent"

_PLACE: Final = re.compile(r"[a-z0-9-]+")
_NODE: Final = re.compile(r"[A-Za-z0-9_-]+")
_INSTANCE_TYPE: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+")


class NodeAction(enum.StrEnum):
    """What one node can be asked."""

    COMMIT = "Commit"
    CORDON = "Cordon"
    DESCRIBE = "Describe"
    DRAIN = "Drain"
    GET_CONSOLE_OUTPUT = "GetConsoleOutput"
    REBOOT = "Reboot"
    RELEASE = "Release"
    START = "Start"
    STOP = "Stop"
    TERMINATE = "Terminate"
    UNCORDON = "Uncordon"


class RegionAction(enum.StrEnum):
    """What every agent of a region can be asked at once."""

    CANCEL_LAUNCH = "CancelLaunch"
    DESCRIBE_CAPACITY = "DescribeCapacity"
    DESCRIBE_INSTANCE_TYPES = "DescribeInstanceTypes"
    INVENTORY = "Inventory"
    LOCATE_LAUNCH = "LocateLaunch"


@lru_cache(maxsize=4_096)
def launch_subject(region: str, instance_type: str, zone: str | None = None) -> str:
    """Return the subject that launches `instance_type` in a region, or in one zone of it.

    Raises InvalidSubjectToken if a part can't stand in a subject.
    """
    if not _INSTANCE_TYPE.fullmatch(instance_type):
        raise InvalidSubjectToken(
            f"instance type {instance_type!r} is not family.size with letters a-z, digits and '-'",
        )
    subject = f"ec2.RunInstances.{check_place(region, 'region')}.{instance_type}"
    return subject if zone is None else f"{subject}.{check_place(zone, 'zone')}"


def node_subject(region: str, node: str, action: NodeAction) -> str:
    """Return the subject that asks one node."""
    return f"ec2.node.{check_place(region, 'region')}.{check_node(node)}.{action.value}"


def node_subscription(region: str, node: str) -> str:
    """Return what the node subscribes to hear all its actions. No other node matches it."""
    return f"ec2.node.{check_place(region, 'region')}.{check_node(node)}.*"


def region_subject(region: str, action: RegionAction) -> str:
    """Return the subject that asks every agent of a region."""
    return f"ec2.region.{check_place(region, 'region')}.{action.value}"


def region_subscription(region: str) -> str:
    """Return what every agent of a region subscribes to, without a queue group."""
    return f"ec2.region.{check_place(region, 'region')}.*"


def action_of(subject: str) -> str:
    """Return the action that a node or region subject ends with."""
    return subject.rpartition(".")[2]


def check_place(name: str, kind: str) -> str:
    """Return `name` if it can be a region or zone: one or more of a-z, 0-9, '-'."""
    if not _PLACE.fullmatch(name):
        raise InvalidSubjectToken(f"{kind} {name!r} may hold only a-z, 0-9 and '-'")
    return name


def check_node(name: str) -> str:
    """Return `name` if it can be a node: one or more of letters, digits, '-' and '_'."""
    if not _NODE.fullmatch(name):
        raise InvalidSubjectToken(f"node {name!r} may hold only letters, digits, '-' and '_'")
    return name
