"""The record of a sweep, in bytes and back."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from fleetcast.errors import InvalidInput
from fleetcast.score_history import (
    PastScore,
    SweepRecord,
    decode_record,
    encode_record,
    history_sort_key,
)
from fleetcast.scoring import RegionSignals, weighted_score

SIGNALS = RegionSignals(spot_placement=0.9, spot_price_ratio=0.3, queue_depth=3)
RECORD = SweepRecord(
    region="us-east-1",
    sweep_id="sweep-1",
    computed_at_s=1_777_000_000.25,
    scores={
        "*": PastScore(82.5, 0, "complete"),
        "t3.medium": PastScore(weighted_score(SIGNALS), 1, "partial", SIGNALS),
    },
)


def test_a_record_reads_back_as_it_was() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD


def test_the_records_of_a_region_sort_by_time() -> None:
    times = [0.0, 999.9994, 1_777_000_000.25, 1_777_000_000.251, 20_000_000_000.0]

    assert sorted(map(history_sort_key, reversed(times))) == list(map(history_sort_key, times))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"no zlib",
        zlib.compress(b"no msgpack"),
        zlib.compress(msgspec.msgpack.encode({"region": "us-east-1"})),
    ],
)
def test_bytes_that_are_no_record_are_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidInput, match="no record of a sweep"):
        decode_record(encoded)


def test_a_hundred_types_take_a_few_kilobytes() -> None:
    scores = {
        f"x{number}.large": PastScore(
            number / 977, 0, "complete", RegionSignals(spot_price_ratio=number / 997)
        )
        for number in range(100)
    }
    record = msgspec.structs.replace(RECORD, scores=scores)

    assert len(encode_record(record)) < 10_000
