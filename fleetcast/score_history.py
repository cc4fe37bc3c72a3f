"""What is kept of a sweep once its scores have been replaced: enough to score it again.

This module owns the form of the history items in the RegionScores table, which the scoring
function writes and `fleetcast scores replay` reads. It is pure: standard library and msgspec only.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from fleetcast.errors import InvalidInput
from fleetcast.scoring import RegionSignals, TelemetryStatus

RECORD_ATTRIBUTE: Final = "record"  # of an item, beside its keys


class PastScore(msgspec.Struct, frozen=True, array_like=True):
    """A region's score for one instance type, and what it was made of.

    signals: what counted, the worst value in place of what wasn't read: weighted_score of them is
    the score under any weights. None for the score that needs no type.
    """

    score: float
    missing_scored_signals: int
    telemetry_status: TelemetryStatus
    signals: RegionSignals | None = None


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One region's scores of one sweep, by instance type; "*" is the score that needs no type.

    computed_at_s: epoch seconds.
    """

    region: str
    sweep_id: str
    computed_at_s: float
    scores: dict[str, PastScore]


def history_partition(region: str) -> str:
    """Return the pk under which a region's sweeps stand."""
    return f"SWEEPS#{region}"


def history_sort_key(at_s: float) -> str:
    """Return the sk of a sweep that began then, epoch seconds >= 0; they sort by time."""
    return f"AT#{round(at_s * 1000):013d}"


def encode_record(record: SweepRecord) -> bytes:
    """Return a record's bytes: a hundred types take a few kilobytes."""
    return zlib.compress(msgspec.msgpack.encode(record))


def decode_record(encoded: bytes) -> SweepRecord:
    """Read a record. Raises InvalidInput for bytes that no sweep has written."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(encoded), type=SweepRecord)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise InvalidInput(f"no record of a sweep: {error}") from error
