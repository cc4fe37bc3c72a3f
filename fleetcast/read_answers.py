"""The JSON of the read API, for both sides: the function that answers and the command line.

    GET /v1/scores?instance-type=…                            ScoresAnswer
    GET /v1/recommendation?instance-type=…&gpus=…&gpu-required=true   RecommendationAnswer
    GET /v1/launches/r-…                                      LaunchAnswer
    any status but 200                                        ErrorAnswer

Additions are compatible: readers pass over fields that they don't know. This module is pure:
standard library and msgspec only.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from fleetcast.errors import InvalidReservationIDMalformed
from fleetcast.launch_story import LaunchState, LaunchStory
from fleetcast.messages import InstanceState
from fleetcast.scoring import Weights
from fleetcast.selection import Recommendation, RegionReport

SCORES_PATH: Final = "/v1/scores"
RECOMMENDATION_PATH: Final = "/v1/recommendation"
RESERVATION_ID: Final = "reservation-id"
LAUNCH_PATH: Final = f"/v1/launches/{{{RESERVATION_ID}}}"

INSTANCE_TYPE: Final = "instance-type"
GPUS: Final = "gpus"
GPU_REQUIRED: Final = "gpu-required"

_RESERVATION_ID: Final = re.compile(r"r-(?:[0-9a-f]{8}|[0-9a-f]{17})")


class ScoresAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The regions, best first.

    instance_type: as asked, or None. scored_type: the type whose scores these are, or None for
    the scores that need no type, which also stand in for a type without its own.
    answered_at_s: epoch seconds; ages are to be counted from here. weights: as they are
    configured; a score from before they were changed was made with others.
    """

    instance_type: str | None
    scored_type: str | None
    answered_at_s: float
    weights: Weights
    regions: tuple[RegionReport, ...]


class RecommendationAnswer(Recommendation, frozen=True, kw_only=True):
    """A recommendation; the other fields as in ScoresAnswer."""

    instance_type: str | None
    scored_type: str | None
    answered_at_s: float


class LaunchedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a launch.

    state, region, zone, node: as its record has them; None where nothing is recorded (yet, or any
    more: the record of a terminated instance goes after an hour).
    """

    instance_id: str
    state: InstanceState | None = None
    region: str | None = None
    zone: str | None = None
    node: str | None = None


class LaunchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a launch.

    launched_at_s, answered_at_s: epoch seconds. region: which took it, or None. pinned: whether
    the caller asked for one place only. undecided_until_s: while it is placing or unknown, until
    when a function may be at work on it, epoch seconds. instances: those that it has; those that
    it may have, while it is not decided; none of a refused one. story: None as long as it is
    placing, and of a launch whose function ended before it wrote one down.
    """

    reservation_id: str
    state: LaunchState
    instance_type: str
    min_count: int
    pinned: bool
    launched_at_s: float
    answered_at_s: float
    region: str | None
    undecided_until_s: float | None
    instances: tuple[LaunchedInstance, ...]
    story: LaunchStory | None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong. code: one of EC2's error codes, for programs. message: for people."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An error."""

    error: ErrorBody


def check_reservation_id(reservation_id: str) -> None:
    """Raise InvalidReservationIDMalformed for what is no reservation id."""
    if not _RESERVATION_ID.fullmatch(reservation_id):
        raise InvalidReservationIDMalformed(f'Invalid id: "{reservation_id}"')


def launch_path(reservation_id: str) -> str:
    """Return the path that answers for a launch. Raises InvalidReservationIDMalformed."""
    check_reservation_id(reservation_id)
    return LAUNCH_PATH.replace(f"{{{RESERVATION_ID}}}", reservation_id)
