"""The JSON of the read API, for both sides: the function that answers and the command line.

    GET /v1/scores?instance-type=…                            ScoresAnswer
    GET /v1/recommendation?instance-type=…&gpus=…&gpu-required=true   RecommendationAnswer
    any status but 200                                        ErrorAnswer

Additions are compatible: readers pass over fields that they don't know. This module is pure:
standard library and msgspec only.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fleetcast.scoring import Weights
from fleetcast.selection import Recommendation, RegionReport

SCORES_PATH: Final = "/v1/scores"
RECOMMENDATION_PATH: Final = "/v1/recommendation"

INSTANCE_TYPE: Final = "instance-type"
GPUS: Final = "gpus"
GPU_REQUIRED: Final = "gpu-required"


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


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong. code: one of EC2's error codes, for programs. message: for people."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An error."""

    error: ErrorBody
