"""What a sweep remembers of a region for the next one. Pure: the time comes in as an argument.

Three things: what the sources that needn't be asked each time last answered, the last good value
of everything, and values over time, for trends. Source: ADR 0006.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import InvalidInput
from fleetcast.scoring import Reading, SignalStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lambdas.score_regions.collection import SignalKey

VERSION: Final = 1
DAY_S: Final = 86_400
KEPT_S: Final = 7 * DAY_S  # an older value says nothing about now


class Series(msgspec.Struct, frozen=True):
    """How a signal is kept over time: one value in each bin, the last one seen."""

    bin_s: int
    kept_s: int


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A value, and when it was observed, epoch seconds."""

    value: float
    observed_at_s: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What a source said of one signal, and when it was asked, epoch seconds."""

    asked_at_s: float
    value: float | None
    status: SignalStatus
    error: str | None = None


class JobQueue(msgspec.Struct, frozen=True, array_like=True):
    """The URL of a region's job queue, and when its stack named it, epoch seconds."""

    url: str
    found_at_s: float


class RegionMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one region from the sweeps before.

    swept_at_s: when the last one began, epoch seconds. answers, last_good, series: by signal, and
    type if it has one. series: values by the number of their bin, counted from the epoch.
    """

    version: int = VERSION
    swept_at_s: float | None = None
    answers: dict[str, Answer] = {}
    last_good: dict[str, Sample] = {}
    series: dict[str, dict[int, float]] = {}
    job_queue: JobQueue | None = None

    def recall(self, key: SignalKey, *, refresh_s: float, now_s: float) -> Reading | None:
        """Return what a source answered less than refresh_s ago; None if it is to be asked."""
        answer = self.answers.get(_name(key))
        # One from the future would hold until its clock is right again.
        if answer is None or not 0 <= now_s - answer.asked_at_s < refresh_s:
            return None
        observed_at_s = None if answer.value is None else answer.asked_at_s
        return Reading(
            value=answer.value,
            status=answer.status,
            observed_at_s=observed_at_s,
            error=answer.error,
        )

    def with_last_good(self, key: SignalKey, reading: Reading, *, now_s: float) -> Reading:
        """Show the last good value beside the reason why there is no new one."""
        sample = self.last_good.get(_name(key))
        if reading.value is not None or reading.status == "not_offered" or sample is None:
            return reading
        if now_s - sample.observed_at_s >= KEPT_S:
            return reading
        return Reading(
            value=sample.value,
            status="refused" if reading.status == "refused" else "stale",
            observed_at_s=sample.observed_at_s,
            error=reading.error,
        )

    def asked_at_s(self, key: SignalKey) -> float | None:
        """Return when a source last answered for a signal, epoch seconds."""
        answer = self.answers.get(_name(key))
        return None if answer is None else answer.asked_at_s

    def last_good_of(self, key: SignalKey) -> Reading | None:
        """Return the last good value of a signal, as it was read."""
        sample = self.last_good.get(_name(key))
        if sample is None:
            return None
        return Reading.of(sample.value, observed_at_s=sample.observed_at_s)

    def values_over_time(self, key: SignalKey) -> dict[int, float]:
        """Return the values of a signal by bin."""
        return self.series.get(_name(key), {})


def remember(
    memory: RegionMemory,
    readings: Mapping[SignalKey, Reading],
    *,
    asked: Collection[SignalKey],
    answered: Collection[SignalKey],
    series: Mapping[str, Series],
    job_queue: JobQueue | None,
    now_s: float,
) -> RegionMemory:
    """Return the memory after a sweep that began at now_s, epoch seconds.

    readings: all of the region. asked: what was due of the signals that are remembered; answered:
    those of it that the source had an answer for. One that it had none for is due again next time.
    series: the signals that are kept over time.
    """
    answers = {
        name: answer
        for name, answer in memory.answers.items()
        if now_s - answer.asked_at_s < KEPT_S
    }
    last_good = {
        name: sample
        for name, sample in memory.last_good.items()
        if now_s - sample.observed_at_s < KEPT_S
    }
    for key, reading in readings.items():
        name = _name(key)
        if key in asked:
            answers.pop(name, None)
        if key in answered:
            answers[name] = Answer(now_s, reading.value, reading.status, reading.error)
        if reading.status == "ok" and reading.value is not None:
            last_good[name] = Sample(reading.value, reading.observed_at_s or now_s)
    return RegionMemory(
        swept_at_s=now_s,
        answers=answers,
        last_good=last_good,
        series=_extended(memory.series, last_good, series, now_s=now_s),
        job_queue=job_queue,
    )


def _extended(
    past: Mapping[str, Mapping[int, float]],
    last_good: Mapping[str, Sample],
    series: Mapping[str, Series],
    *,
    now_s: float,
) -> dict[str, dict[int, float]]:
    """Add the newest values, and drop what is older than is kept."""
    extended: dict[str, dict[int, float]] = {}
    for name in sorted(past.keys() | last_good.keys()):
        kind = series.get(name.partition(" ")[0])
        if kind is None:
            continue
        values = dict(past.get(name, {}))
        if name in last_good:
            newest = last_good[name]
            values[int(newest.observed_at_s // kind.bin_s)] = newest.value
        oldest_bin = (now_s - kind.kept_s) // kind.bin_s
        kept = {at: value for at, value in sorted(values.items()) if at > oldest_bin}
        if kept:
            extended[name] = kept
    return extended


def encode_memory(memory: RegionMemory) -> bytes:
    """Return a memory's bytes: a hundred types take some 10 kB."""
    return zlib.compress(msgspec.msgpack.encode(memory))


def decode_memory(encoded: bytes) -> RegionMemory:
    """Read a memory. Raises InvalidInput for bytes that this version hasn't written."""
    try:
        memory = msgspec.msgpack.decode(zlib.decompress(encoded), type=RegionMemory)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise InvalidInput(f"no memory of a sweep: {error}") from error
    if memory.version != VERSION:
        raise InvalidInput(f"a memory of version {memory.version}; this is version {VERSION}")
    return memory


def _name(key: SignalKey) -> str:
    return key.signal if key.instance_type is None else f"{key.signal} {key.instance_type}"
