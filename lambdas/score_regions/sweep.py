"""One sweep: recall, read every signal of every region, score, write."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aws_lambda_powertools import Logger

from fleetcast.errors import InvalidInput
from lambdas.score_regions.collection import collect
from lambdas.score_regions.memory import RegionMemory, decode_memory, remember
from lambdas.score_regions.plan import make_clients_ahead, plan_sweep, refresh_periods
from lambdas.score_regions.scores import score_region
from lambdas.score_regions.signals.capacity_blocks import OFFERS, OFFERS_KEPT
from lambdas.score_regions.signals.job_queue import JobQueues
from lambdas.score_regions.signals.spot_price_trends import PRICES_KEPT
from lambdas.score_regions.signals.spot_prices import SPOT_PRICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fleetcast.scoring import Reading
    from lambdas.region_scores import RegionScoresTable
    from lambdas.score_regions.clients import AwsClients
    from lambdas.score_regions.collection import SignalKey
    from lambdas.settings import ScoreRegionsSettings

logger = Logger(service="score_regions", child=True)

ResultT = TypeVar("ResultT")

RECALL_THREADS: Final = 32
WRITE_THREADS: Final = 32  # a region of a hundred types takes 1 MiB while it is written
SERIES: Final = {SPOT_PRICE: PRICES_KEPT, OFFERS: OFFERS_KEPT}


@dataclass(frozen=True, kw_only=True)
class RegionReadings:
    """What a sweep knows of a region, and what it leaves to the next one."""

    readings: Mapping[SignalKey, Reading]
    memory: RegionMemory


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """What a sweep saw and did.

    readings_n: by status. errors_n: how many readings have each error, by "signal: status: error".
    rows_superseded_n: rows that weren't written because a newer sweep's stand there. unwritten:
    by region whose memory couldn't be read or whose rows couldn't be written, why; what stood
    there before still stands. oldest_score_at_s: when the oldest scores that now stand were made,
    epoch seconds; None if that isn't known of some region.
    """

    sweep_id: str
    readings_n: Mapping[str, int]
    errors_n: Mapping[str, int]
    rows_written_n: int
    rows_superseded_n: int
    unwritten: Mapping[str, Exception]
    oldest_score_at_s: float | None


def run_sweep(
    settings: ScoreRegionsSettings,
    clients: AwsClients,
    table: RegionScoresTable,
    credentials: Callable[[str], str],
    *,
    sweep_id: str,
    now_s: float,
    read_within_s: float,
) -> SweepSummary:
    """Read, score and write everything once.

    credentials: the content of a NATS credentials secret by its name. now_s: epoch seconds; it
    dates the sweep. read_within_s: signals that aren't back by then are scored as missing.
    """
    ends_at_s = time.monotonic() + read_within_s
    names = [region.name for region in settings.regions]
    # The CPU is idle while the memories are on their way. A client that can't be made is met again
    # by those who ask for it.
    ahead = ThreadPoolExecutor(1, thread_name_prefix="clients")
    ahead.submit(make_clients_ahead, settings, clients)
    ahead.shutdown(wait=False)
    memories, forgotten = _for_each(
        names,
        lambda region: _recall(table, region),
        threads=RECALL_THREADS,
        timeout_s=read_within_s,
    )
    seen = read_signals(
        settings,
        memories,
        clients,
        credentials,
        now_s=now_s,
        within_s=max(0.0, ends_at_s - time.monotonic()),
    )

    def score_and_write(region: str) -> tuple[int, int]:
        of = seen[region]
        sweep = score_region(
            settings, region, of.readings, of.memory, sweep_id=sweep_id, computed_at_s=now_s
        )
        rows_n = len(sweep.rows)
        return (rows_n, 0) if table.write(sweep) else (0, rows_n)

    rows_n, unwritten = _for_each(seen, score_and_write, threads=WRITE_THREADS)
    swept_at_s = [memories[region].swept_at_s for region in unwritten]
    return SweepSummary(
        sweep_id=sweep_id,
        **_counts(reading for of in seen.values() for reading in of.readings.items()),
        rows_written_n=sum(written_n for written_n, _ in rows_n.values()),
        rows_superseded_n=sum(superseded_n for _, superseded_n in rows_n.values()),
        unwritten=forgotten | unwritten,
        oldest_score_at_s=None if forgotten else _oldest([now_s, *swept_at_s]),
    )


def read_signals(
    settings: ScoreRegionsSettings,
    memories: Mapping[str, RegionMemory],
    clients: AwsClients,
    credentials: Callable[[str], str],
    *,
    now_s: float,
    within_s: float,
) -> dict[str, RegionReadings]:
    """Read, side by side, all signals of the regions that have a memory; arguments as run_sweep's.

    What a call was to read and didn't shows its last good value, by its status not as one of now.
    """
    known_queues = {region: memory.job_queue for region, memory in memories.items()}
    queues = JobQueues(known_queues, now_s=now_s)
    plan = plan_sweep(settings, memories, queues, clients, credentials, now_s=now_s)
    collected = collect(plan.probes, timeout_s=within_s)
    refresh_s = refresh_periods(settings)
    asked = {key for key in collected.readings if key.signal in refresh_s}
    answered = asked & collected.answered
    known_of, read_of = _by_region(plan.known), _by_region(collected.readings)
    return {
        region: RegionReadings(
            readings=known_of[region]
            | {
                key: memory.with_last_good(key, reading, now_s=now_s)
                for key, reading in read_of[region].items()
            },
            memory=remember(
                memory,
                known_of[region] | read_of[region],
                asked=asked,
                answered=answered,
                series=SERIES,
                job_queue=queues.of(region),
                now_s=now_s,
            ),
        )
        for region, memory in memories.items()
    }


def _by_region(
    readings: Mapping[SignalKey, Reading],
) -> defaultdict[str, dict[SignalKey, Reading]]:
    by_region: defaultdict[str, dict[SignalKey, Reading]] = defaultdict(dict)
    for key, reading in readings.items():
        by_region[key.region][key] = reading
    return by_region


def _recall(table: RegionScoresTable, region: str) -> RegionMemory:
    encoded = table.read_memory(region)
    if encoded is None:
        return RegionMemory()
    try:
        return decode_memory(encoded)
    except InvalidInput as error:
        # Another version's, most likely: what was in it will be learnt again.
        logger.warning("memory not understood", region=region, why=str(error))
        return RegionMemory()


def _for_each(
    regions: Iterable[str],
    act: Callable[[str], ResultT],
    *,
    threads: int,
    timeout_s: float | None = None,
) -> tuple[dict[str, ResultT], dict[str, Exception]]:
    """Act on all regions side by side; the results by region, and the errors of the others."""
    executor = ThreadPoolExecutor(threads, thread_name_prefix="table")
    futures = {region: executor.submit(act, region) for region in regions}
    done, _ = wait(futures.values(), timeout=timeout_s)
    executor.shutdown(wait=False, cancel_futures=True)
    results: dict[str, ResultT] = {}
    errors: dict[str, Exception] = {}
    for region, future in futures.items():
        error = future.exception() if future in done else TimeoutError("deadline")
        if error is None:
            results[region] = future.result()
        elif isinstance(error, Exception):
            errors[region] = error
        else:
            raise error
    return results, errors


def _oldest(times_s: Iterable[float | None]) -> float | None:
    known = list(times_s)
    return None if None in known else min(time_s for time_s in known if time_s is not None)


def _counts(readings: Iterable[tuple[SignalKey, Reading]]) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for key, reading in readings:
        statuses[reading.status] += 1
        if reading.error is not None:
            errors[f"{key.signal}: {reading.status}: {reading.error}"] += 1
    return {"readings_n": dict(statuses), "errors_n": dict(errors)}
