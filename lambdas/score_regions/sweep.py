"""One sweep: read every signal of every region, score, write."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lambdas.score_regions.collection import collect
from lambdas.score_regions.scores import score_rows
from lambdas.score_regions.signals.cluster_utilization import cluster_utilization_probe
from lambdas.score_regions.signals.job_queue import job_queue_probe
from lambdas.score_regions.signals.on_demand_prices import on_demand_price_probe
from lambdas.score_regions.signals.spot_prices import spot_price_probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lambdas.region_scores import Reading, RegionScoresTable, ScoreRow
    from lambdas.score_regions.clients import AwsClients
    from lambdas.score_regions.collection import Probe, SignalKey
    from lambdas.settings import ScoreRegionsSettings

WRITING_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class SweepSummary:
    """What a sweep saw and did.

    readings_n: by status. errors_n: how many readings have each error, by "signal: status: error".
    rows_superseded_n: rows that weren't written because a newer sweep's stand there.
    """

    sweep_id: str
    readings_n: Mapping[str, int]
    errors_n: Mapping[str, int]
    rows_written_n: int
    rows_superseded_n: int


def run_sweep(
    settings: ScoreRegionsSettings,
    clients: AwsClients,
    table: RegionScoresTable,
    *,
    sweep_id: str,
    now_s: float,
    read_within_s: float,
) -> SweepSummary:
    """Read, score and write everything once.

    now_s: epoch seconds; it dates the sweep. read_within_s: signals that aren't back by then are
    scored as missing. Raises the first error that writing met, once every row has been tried.
    """
    readings = read_signals(settings, clients, now_s=now_s, within_s=read_within_s)
    rows = list(score_rows(settings, readings, sweep_id=sweep_id, computed_at_s=now_s))
    written_n = _write(rows, table)
    return SweepSummary(
        sweep_id=sweep_id,
        readings_n=dict(Counter(reading.status for reading in readings.values())),
        errors_n=dict(
            Counter(
                f"{key.signal}: {reading.status}: {reading.error}"
                for key, reading in readings.items()
                if reading.error is not None
            )
        ),
        rows_written_n=written_n,
        rows_superseded_n=len(rows) - written_n,
    )


def read_signals(
    settings: ScoreRegionsSettings, clients: AwsClients, *, now_s: float, within_s: float
) -> dict[SignalKey, Reading]:
    """Read all signals of all regions side by side; arguments as run_sweep's."""
    return collect(list(_probes(settings, clients, now_s=now_s)), timeout_s=within_s)


def _probes(
    settings: ScoreRegionsSettings, clients: AwsClients, *, now_s: float
) -> Iterator[Probe]:
    types = settings.scored_instance_types
    region_names = [region.name for region in settings.regions]
    for region in settings.regions:
        yield job_queue_probe(region, clients, now_s=now_s)
        yield cluster_utilization_probe(region, clients, now_s=now_s)
        yield spot_price_probe(region.name, types, clients, now_s=now_s)
    for instance_type in types:
        yield on_demand_price_probe(instance_type, region_names, clients, now_s=now_s)


def _write(rows: Sequence[ScoreRow], table: RegionScoresTable) -> int:
    """Write all rows side by side; return how many no newer sweep had superseded."""
    with ThreadPoolExecutor(WRITING_THREADS, thread_name_prefix="write") as executor:
        futures = [executor.submit(table.write, row) for row in rows]
        wait(futures)
    return sum(future.result() for future in futures)
