"""Collect readings side by side: a probe is one source's errand, and none can harm another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError, UnknownRegionError
from botocore.parsers import ResponseParserError

from fleetcast.scoring import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

logger = Logger(service="score_regions", child=True)

# Probes wait for the network nearly all the time.
MAX_THREADS = 128
MAX_ERROR_CHARACTERS = 300

# AWS says no, and repeating the call won't change its mind.
REFUSALS = {
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "MaxConfigLimitExceeded",
    "OptInRequired",
    "UnauthorizedOperation",
    "UnrecognizedClientException",
}


@dataclass(frozen=True, slots=True)  # a sweep has thousands
class SignalKey:
    """Which signal, of which region, of which instance type (None: of the region as a whole)."""

    signal: str
    region: str
    instance_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """An errand that yields readings.

    name: for the log. expects: every signal that it is to read. read: does it, in a thread of its
    own; what it leaves out is missing, and what it raises becomes the reading of all it expects.
    not_offered: error codes that say that there is nothing to read, which is no failure.
    """

    name: str
    expects: tuple[SignalKey, ...]
    read: Callable[[], Mapping[SignalKey, Reading]]
    not_offered: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Collected:
    """A reading for everything that was expected, and what of it a source had an answer for.

    An answer may be that there is nothing.
    """

    readings: Mapping[SignalKey, Reading]
    answered: frozenset[SignalKey]


def collect(probes: Sequence[Probe], *, timeout_s: float) -> Collected:
    """Run all probes side by side; a reading for everything that they expect, whatever happens.

    timeout_s: what isn't back by then is missing. Its thread isn't waited for: the clients' own
    timeouts end it.
    """
    executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="probe")
    futures = [executor.submit(probe.read) for probe in probes]
    done, _ = wait(futures, timeout=timeout_s)
    executor.shutdown(wait=False, cancel_futures=True)

    readings: dict[SignalKey, Reading] = {}
    answered: set[SignalKey] = set()
    for probe, future in zip(probes, futures, strict=True):
        if future not in done:
            readings |= dict.fromkeys(probe.expects, Reading.absent("missing", "deadline"))
            continue
        outcome = _outcome(probe, future)
        readings |= outcome
        if future.exception() is None or _is_not_offered(outcome):
            answered |= outcome.keys()
    return Collected(readings, frozenset(answered))


def reading_of_error(error: BaseException, *, not_offered: frozenset[str] = frozenset()) -> Reading:
    """Turn what a probe raised into the reading of what it was to read."""
    words = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    if isinstance(error, UnknownRegionError):
        return Reading.absent("missing", words)
    if not isinstance(error, ClientError):
        return Reading.absent("failed", f"{type(error).__name__}: {words}")
    code = error.response.get("Error", {}).get("Code", "")
    if code in REFUSALS:
        return Reading.absent("refused", words)
    if code in not_offered:
        return Reading.absent("not_offered", words)
    return Reading.absent("failed", words)


def _is_not_offered(outcome: Mapping[SignalKey, Reading]) -> bool:
    return all(reading.status == "not_offered" for reading in outcome.values())


def _outcome(
    probe: Probe, future: Future[Mapping[SignalKey, Reading]]
) -> Mapping[SignalKey, Reading]:
    error = future.exception()
    if error is None:
        absent = dict.fromkeys(probe.expects, Reading.absent("missing", "not in the answer"))
        return absent | dict(future.result())
    if not isinstance(error, ClientError | BotoCoreError | ResponseParserError):
        # An answer in a form that the collector doesn't know: ours to mend.
        logger.error("probe broke", probe=probe.name, exc_info=error)
    reading = reading_of_error(error, not_offered=probe.not_offered)
    return dict.fromkeys(probe.expects, reading)
