"""What a sweep remembers for the next one, and for how long."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import InvalidInput
from fleetcast.scoring import Reading, SignalStatus
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.memory import (
    DAY_S,
    JobQueue,
    RegionMemory,
    Series,
    decode_memory,
    encode_memory,
    remember,
)

NOW_S = 1_777_000_000.0
QUEUE = SignalKey("queue_depth", "us-east-1")
PRICE = SignalKey("on_demand_price_usd_per_hour", "us-east-1", "t3.medium")
FAILED = Reading.absent("failed", "slow down")


def seen(value: float, at_s: float = NOW_S) -> Reading:
    return Reading.of(value, observed_at_s=at_s)


def after(
    memory: RegionMemory,
    readings: dict[SignalKey, Reading],
    *,
    answered: bool = True,
    series: dict[str, Series] | None = None,
    now_s: float = NOW_S,
) -> RegionMemory:
    """The memory after a sweep that asked for the price, if it has a reading of it."""
    asked = readings.keys() & {PRICE}
    return remember(
        memory,
        readings,
        asked=asked,
        answered=asked if answered else (),
        series=series or {},
        job_queue=None,
        now_s=now_s,
    )


# --- answers -------------------------------------------------------------------------------


def test_an_answer_holds_until_it_is_to_be_asked_for_again() -> None:
    memory = after(RegionMemory(), {PRICE: seen(1.5)})

    assert memory.recall(PRICE, refresh_s=60, now_s=NOW_S + 59) == seen(1.5)
    assert memory.recall(PRICE, refresh_s=60, now_s=NOW_S + 60) is None


def test_an_answer_from_the_future_does_not_hold() -> None:
    memory = after(RegionMemory(), {PRICE: seen(1.5)})

    assert memory.recall(PRICE, refresh_s=60, now_s=NOW_S - 1) is None


@pytest.mark.parametrize("status", ["missing", "not_offered"])
def test_an_answer_of_nothing_holds_as_long(status: SignalStatus) -> None:
    absent = Reading.absent(status, "not in the answer")
    memory = after(RegionMemory(), {PRICE: absent})

    assert memory.recall(PRICE, refresh_s=60, now_s=NOW_S + 59) == absent


def test_what_failed_is_to_be_asked_for_again_whatever_was_answered_before() -> None:
    memory = after(RegionMemory(), {PRICE: seen(1.5)})
    memory = after(memory, {PRICE: FAILED}, answered=False, now_s=NOW_S + 1)

    assert memory.recall(PRICE, refresh_s=60, now_s=NOW_S + 2) is None


def test_what_nobody_was_asked_for_is_remembered_as_before() -> None:
    memory = after(RegionMemory(), {PRICE: seen(1.5)})
    memory = after(memory, {}, now_s=NOW_S + 50)

    assert memory.recall(PRICE, refresh_s=60, now_s=NOW_S + 59) == seen(1.5)
    assert memory.swept_at_s == NOW_S + 50


# --- the last good value -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "shown"), [("failed", "stale"), ("missing", "stale"), ("refused", "refused")]
)
def test_the_last_good_value_is_shown_with_its_age_and_the_error(
    status: SignalStatus, shown: SignalStatus
) -> None:
    memory = after(RegionMemory(), {QUEUE: seen(3)})
    reading = Reading.absent(status, "why not")

    assert memory.with_last_good(QUEUE, reading, now_s=NOW_S + 600) == Reading(
        value=3, status=shown, observed_at_s=NOW_S, error="why not"
    )


@pytest.mark.parametrize(
    "reading", [seen(5, NOW_S + 600), Reading.absent("not_offered", "scaled to zero")]
)
def test_a_value_of_now_or_that_there_is_none_needs_no_last_good_one(reading: Reading) -> None:
    memory = after(RegionMemory(), {QUEUE: seen(3)})

    assert memory.with_last_good(QUEUE, reading, now_s=NOW_S + 600) == reading


def test_a_last_good_value_outlives_failures_but_not_a_week() -> None:
    memory = after(RegionMemory(), {QUEUE: seen(3)})
    for hours in (1, 2, 3):
        memory = after(memory, {QUEUE: FAILED}, now_s=NOW_S + hours * 3600)

    assert memory.with_last_good(QUEUE, FAILED, now_s=NOW_S + 7 * DAY_S - 1).value == 3
    assert memory.with_last_good(QUEUE, FAILED, now_s=NOW_S + 7 * DAY_S) == FAILED


# --- values over time ----------------------------------------------------------------------

DAILY = {PRICE.signal: Series(bin_s=DAY_S, kept_s=3 * DAY_S)}


def test_a_series_has_the_last_value_of_each_day_for_as_long_as_it_is_kept() -> None:
    memory = RegionMemory()
    for quarter in range(5 * 4):
        at_s = quarter * DAY_S / 4
        memory = after(memory, {PRICE: seen(quarter, at_s)}, series=DAILY, now_s=at_s)

    assert memory.values_over_time(PRICE) == {2: 11, 3: 15, 4: 19}


def test_a_signal_without_a_series_is_not_kept_over_time() -> None:
    memory = after(RegionMemory(), {PRICE: seen(1), QUEUE: seen(1)}, series=DAILY)

    assert memory.values_over_time(PRICE) == {int(NOW_S // DAY_S): 1}
    assert memory.values_over_time(QUEUE) == {}


def test_a_type_that_is_scored_no_more_is_forgotten() -> None:
    memory = after(RegionMemory(), {PRICE: seen(1)}, series=DAILY)
    memory = after(memory, {QUEUE: seen(1)}, series=DAILY, now_s=NOW_S + 8 * DAY_S)

    assert memory.last_good.keys() == {"queue_depth"}
    assert (memory.answers, memory.series) == ({}, {})


# --- bytes ---------------------------------------------------------------------------------

names = st.sampled_from(["queue_depth", "spot_placement t3.medium"])
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(names, st.dictionaries(st.integers(0, 10**5), numbers)), numbers)
def test_a_memory_reads_back_as_it_was(
    series: dict[str, dict[int, float]], found_at_s: float
) -> None:
    memory = RegionMemory(
        series=series, job_queue=JobQueue("https://sqs/q", found_at_s), swept_at_s=found_at_s
    )

    assert decode_memory(encode_memory(memory)) == memory


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"no zlib",
        zlib.compress(b"no msgpack"),
        zlib.compress(msgspec.msgpack.encode({"answers": 1})),
        encode_memory(RegionMemory(version=2)),
    ],
)
def test_bytes_that_this_version_has_not_written_are_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidInput, match="memory"):
        decode_memory(encoded)


def test_the_memory_of_a_hundred_types_fits_an_item_many_times_over() -> None:
    readings = {
        SignalKey(signal, "us-east-1", f"x{number}.large"): seen(number / 977 + len(signal))
        for number in range(100)
        for signal in ("spot_price_usd_per_hour", "on_demand_price_usd_per_hour", "spot_placement")
    }
    series = {"spot_price_usd_per_hour": Series(bin_s=DAY_S // 4, kept_s=14 * DAY_S)}
    memory = RegionMemory()
    for quarter in range(14 * 4):
        at_s = NOW_S + quarter * DAY_S / 4
        moved = {
            key: seen((reading.value or 0) * (1 + quarter / 997), at_s)
            for key, reading in readings.items()
        }
        memory = after(memory, moved, series=series, now_s=at_s)

    assert len(encode_memory(memory)) < 100_000
