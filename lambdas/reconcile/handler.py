"""The function's entry: one scheduled invocation is one run."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import botocore.session
from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers
from botocore.config import Config

from lambdas.bus import Bus
from lambdas.fleet_table import FleetTable
from lambdas.nats_credentials import secret_reader
from lambdas.reconcile.concurrency import SIDE_BY_SIDE
from lambdas.reconcile.fleet import reconcile_fleet
from lambdas.reconcile.metrics import SERVICE, publish
from lambdas.reconcile.region import Services
from lambdas.reconcile.table import ReconcileTable
from lambdas.settings import ReconcileSettings, decode_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aws_lambda_powertools.utilities.typing import LambdaContext

    from lambdas.reconcile.fleet import RunSummary

_log = logging.getLogger(__name__)

_TABLE_CALLS: Final = Config(
    connect_timeout=1,
    read_timeout=3,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=SIDE_BY_SIDE,
)
# What is kept of the function's time for telling how far a run has come.
_TELLING_S: Final = 2.0

# One loop for the process: a NATS connection made under another never answers.
loop: Final = asyncio.new_event_loop()
loop.set_default_executor(ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="table"))


@dataclass(frozen=True, kw_only=True)
class Started:
    """What all runs of a process share."""

    settings: ReconcileSettings
    services: Services


def handle(_event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Reconcile once; return what was seen and done. Any event will do: the schedule's is empty.

    Raises an ExceptionGroup of what could not be done; all else is done by then. Raises
    TimeoutError if the time was not enough.
    """
    began_s = time.monotonic()
    started = at_cold_start()
    within_s = max(0.0, context.get_remaining_time_in_millis() / 1000 - _TELLING_S)
    regions = [region.name for region in started.settings.regions]
    summary = loop.run_until_complete(
        asyncio.wait_for(reconcile_fleet(started.services, regions), within_s)
    )
    duration_s = round(time.monotonic() - began_s, 3)
    told = _told(summary) | {"duration_s": duration_s}
    _log.info("reconciled", extra=told)
    publish(summary, started.settings.scored_instance_types, duration_s=duration_s)
    if summary.errors:
        raise ExceptionGroup("not everything could be done", summary.errors)
    return told


def _told(summary: RunSummary) -> dict[str, Any]:
    regions = {
        one.region: vars(one)
        | {"nodes": len(one.nodes), "room": dict(one.room), "errors": len(one.errors)}
        for one in summary.regions
    }
    return {
        "regions": regions,
        "launches_resolved_n": summary.launches_resolved_n,
        "undecided_launches_n": summary.undecided_launches_n,
        "errors": [repr(error) for error in summary.errors],
    }


@cache
def at_cold_start() -> Started:
    """Check the settings and make what all runs share, once a process."""
    settings = decode_settings(ReconcileSettings, os.environ)
    session = botocore.session.get_session()
    # botocore's own stubs know no services.
    dynamodb: Any = session.create_client("dynamodb", config=_TABLE_CALLS)
    services = Services(
        bus=Bus(
            {region.name: region for region in settings.regions},
            secret_reader(lambda: session.create_client("secretsmanager", config=_TABLE_CALLS)),
            client_name="fleetcast-reconcile",
        ),
        fleet=FleetTable(dynamodb, settings.fleet_table),
        table=ReconcileTable(dynamodb, settings.fleet_table),
        now_s=time.time,
        sleep=asyncio.sleep,
    )
    return Started(settings=settings, services=services)


def _log_as_json() -> None:
    logger = Logger(service=SERVICE)
    logging.getLogger("lambdas")  # only loggers that exist by now are copied to
    copy_config_to_registered_loggers(source_logger=logger, include={"lambdas"})


_log_as_json()
