"""The function's entry: one scheduled invocation is one sweep."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
from aws_lambda_powertools import Logger
from botocore.config import Config

from lambdas.region_scores import RegionScoresTable
from lambdas.score_regions.clients import AwsClients
from lambdas.score_regions.sweep import WRITING_THREADS, run_sweep
from lambdas.settings import ScoreRegionsSettings, decode_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext

logger = Logger(service="score_regions")

# What is kept of the function's time for scoring and writing what has been read.
WRITING_S = 5.0
TABLE_CALLS = Config(
    connect_timeout=1,
    read_timeout=2,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=WRITING_THREADS,
)


def handle(_event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Sweep once; return what was seen and done. Any event will do: the schedule's says nothing.

    Raises when a row could not be written, so that the schedule tries again.
    """
    started_s = time.monotonic()
    settings, clients, table = at_cold_start()
    summary = run_sweep(
        settings,
        clients,
        table,
        sweep_id=context.aws_request_id,
        now_s=time.time(),
        read_within_s=max(0.0, context.get_remaining_time_in_millis() / 1000 - WRITING_S),
    )
    logger.info("swept", duration_s=round(time.monotonic() - started_s, 3), **asdict(summary))
    return asdict(summary)


@cache
def at_cold_start() -> tuple[ScoreRegionsSettings, AwsClients, RegionScoresTable]:
    """Check the settings and make what all sweeps share, once a process."""
    settings = decode_settings(ScoreRegionsSettings, os.environ)
    session = boto3.session.Session()
    table = RegionScoresTable(
        session.client("dynamodb", config=TABLE_CALLS), settings.region_scores_table
    )
    return settings, AwsClients(session), table
