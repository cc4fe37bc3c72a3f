"""The function's entry: one scheduled invocation is one sweep."""

from __future__ import annotations

import gc
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit, single_metric
from botocore.config import Config

from lambdas.nats_credentials import secret_reader
from lambdas.region_scores import RegionScoresTable
from lambdas.score_regions.clients import AwsClients, CallCount, new_session
from lambdas.score_regions.connections import Connections
from lambdas.score_regions.sweep import RECALL_THREADS, run_sweep
from lambdas.settings import ScoreRegionsSettings, decode_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext

    from lambdas.score_regions.sweep import SweepSummary

SERVICE: Final = "score_regions"

logger = Logger(service=SERVICE)

METRICS_NAMESPACE: Final = "fleetcast"
# Kinds of readings that are no good: a signal that is not offered is none of them.
FAILURE_KINDS: Final = ("stale", "missing", "refused", "failed")
# What is kept of the function's time for scoring and writing what has been read.
WRITING_S: Final = 10.0
TABLE_CALLS: Final = Config(
    connect_timeout=1,
    read_timeout=2,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=RECALL_THREADS,
    # The items are our own encoding: checking their attributes takes as long as sending them.
    parameter_validation=False,
)


@dataclass(frozen=True, kw_only=True)
class Services:
    """What all sweeps of a process share."""

    settings: ScoreRegionsSettings
    clients: AwsClients
    table: RegionScoresTable
    credentials: Callable[[str], str]
    calls: CallCount


def handle(_event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Sweep once; return what was seen and done. Any event will do: the schedule's says nothing.

    Raises an ExceptionGroup when a region could not be written, so that the schedule tries again.
    """
    started_s = time.monotonic()
    with _cycles_left_alone():
        services = at_cold_start()
        calls_before_n = services.calls.calls_n
        summary = run_sweep(
            services.settings,
            services.clients,
            services.table,
            services.credentials,
            sweep_id=context.aws_request_id,
            now_s=time.time(),
            read_within_s=max(0.0, context.get_remaining_time_in_millis() / 1000 - WRITING_S),
        )
    duration_s = round(time.monotonic() - started_s, 3)
    aws_calls_n = services.calls.calls_n - calls_before_n
    told = vars(summary) | {
        "unwritten": {region: repr(error) for region, error in summary.unwritten.items()}
    }
    logger.info("swept", duration_s=duration_s, aws_calls_n=aws_calls_n, **told)
    _publish(summary, duration_s=duration_s, aws_calls_n=aws_calls_n)
    if summary.unwritten:
        raise ExceptionGroup(
            f"not written: {', '.join(summary.unwritten)}", list(summary.unwritten.values())
        )
    return told


@cache
def at_cold_start() -> Services:
    """Check the settings and make what all sweeps share, once a process."""
    settings = decode_settings(ScoreRegionsSettings, os.environ)
    session = new_session()
    calls = CallCount(session)  # before the first client
    connections = Connections()
    dynamodb = session.client("dynamodb", config=TABLE_CALLS)
    connections.carry(dynamodb)
    return Services(
        settings=settings,
        clients=AwsClients(session, connections=connections),
        table=RegionScoresTable(dynamodb, settings.region_scores_table),
        credentials=secret_reader(lambda: session.client("secretsmanager", config=TABLE_CALLS)),
        calls=calls,
    )


@contextmanager
def _cycles_left_alone() -> Iterator[None]:
    """Keep Python's search for cyclic garbage from running meanwhile.

    It goes through all clients again and again, a fifth of a sweep's CPU, for some 2 MiB.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _publish(summary: SweepSummary, *, duration_s: float, aws_calls_n: int) -> None:
    """Publish the sweep's metrics, as lines of the log in CloudWatch's embedded metric format."""
    metrics = Metrics(namespace=METRICS_NAMESPACE, service=SERVICE)
    metrics.add_metric("SweepDuration", MetricUnit.Seconds, duration_s)
    metrics.add_metric("AwsCalls", MetricUnit.Count, aws_calls_n)
    if summary.oldest_score_at_s is not None:
        age_s = max(0.0, time.time() - summary.oldest_score_at_s)
        metrics.add_metric("OldestScoreAge", MetricUnit.Seconds, round(age_s, 3))
    metrics.flush_metrics()
    for kind in FAILURE_KINDS:
        with single_metric(
            "FailedSignals",
            MetricUnit.Count,
            summary.readings_n.get(kind, 0),
            namespace=METRICS_NAMESPACE,
        ) as metric:
            metric.add_dimension("service", SERVICE)
            metric.add_dimension("kind", kind)
