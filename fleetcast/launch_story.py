"""What happened in a launch: the regions in their order, what was asked there, how it ended.

Launching writes it down, the API returns it, the command line prints it. This module owns its form;
fleetcast.launch_words has the words. It is pure: standard library and msgspec only.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from fleetcast.selection import RankedRegion

# Of what a node or a server has said. A story stands in one DynamoDB item, with up to 200 asks.
MAX_WHY_CHARACTERS: Final = 200

AskOutcome: TypeAlias = Literal[
    "accepted",
    "full",
    "client_fault",
    "node_fault",
    "no_responders",
    "unreachable",
    "no_answer",
    "found",
    "not_found",
    "committed",
    "released",
]
RegionEnd: TypeAlias = Literal["placed", "no_room", "not_asked", "in_doubt"]
LaunchState: TypeAlias = Literal["placing", "placed", "refused", "unknown"]


def shortened(why: str) -> str:
    """Return a reason as a story keeps it."""
    return why if len(why) <= MAX_WHY_CHARACTERS else f"{why[: MAX_WHY_CHARACTERS - 1]}…"


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question and its answer.

    count: how many instances it was about. began_ms, took_ms: milliseconds since the launch began,
    and until the answer. detail: in the node's or the server's words.
    """

    region: str
    subject: str
    outcome: AskOutcome
    attempt: int
    count: int
    began_ms: float
    took_ms: float
    node: str | None = None
    detail: str = ""


class RegionVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the walk left a region.

    no_room: its own server has said that nobody else has room. not_asked: that could not be found
    out. in_doubt: something may be held there. why: one short line; "" when it was placed.
    """

    region: str
    end: RegionEnd
    why: str = ""


class LaunchStory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One launch as it went.

    ranked: the regions in the order in which they were tried. asked_last: those of them that had
    nobody for this type some seconds before. asks_left_out: how many asks there were beyond those
    that are kept.
    """

    ranked: tuple[RankedRegion, ...] = ()
    asked_last: tuple[str, ...] = ()
    verdicts: tuple[RegionVerdict, ...] = ()
    asks: tuple[Ask, ...] = ()
    asks_left_out: int = 0
    error_code: str | None = None
    error_message: str | None = None
    took_ms: float = 0.0
