"""`fleetcast scores replay`: place the launches of the past again, under other weights."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import boto3
import click
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
)
from rich.console import Console

from fleetcast.cli.first_choices import FirstChoices
from fleetcast.cli.moved_launches import MovedLaunches
from fleetcast.cli.past_records import pages_of_launches, records_in_order, scored_regions
from fleetcast.cli.read_api import NO_CREDENTIALS
from fleetcast.cli.replay_view import Replay, minute, replay_view
from fleetcast.cli.rescored import group_sweeps, rescore
from fleetcast.cli.terminal import output_console, print_json
from fleetcast.errors import InvalidInput, InvalidWeights
from fleetcast.scoring import Weights
from fleetcast.selection import DEFAULT_TIE_BAND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from mypy_boto3_dynamodb import DynamoDBClient
    from rich.status import Status

    from fleetcast.launch_history import PastLaunch
    from fleetcast.score_history import SweepRecord

_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400}
DEFAULT_MAX_SCORE_AGE_S: Final = 900.0  # a contract test holds it to the function's
_EXAMPLES: Final = """\b
Examples (FLEETCAST_REGION_SCORES_TABLE and FLEETCAST_FLEET_TABLE name the tables):
  fleetcast scores replay --weights new.json --since 24h
  fleetcast scores replay --weights new.json --since 7d --type t3.medium

\b
new.json, e.g. to go by price before all else:
  {"spot_placement": 0.2, "spot_price_ratio": 0.5, "queue_depth": 0.1,
   "gpu_utilization": 0.1, "running_jobs": 0.05, "capacity_block_trend": 0.05}
"""


def _seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """Read a length of time, as 90m, 24h or 7d."""
    length = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", value)
    if length is None:
        raise click.BadParameter(f"{value!r} is no length of time; expected e.g. 90m, 24h or 7d")
    return float(length[1]) * _UNITS_S[length[2]]


@click.command(epilog=_EXAMPLES)
@click.option(
    "--weights",
    "weights_file",
    type=click.File("rb", lazy=True),
    required=True,
    metavar="FILE",
    help="The other weights: a JSON object, as scoring.weights in cdk.json; - is standard input.",
)
@click.option(
    "--since",
    "since_s",
    callback=_seconds,
    default="24h",
    show_default=True,
    metavar="TIME",
    help="How far back: minutes (90m), hours (24h) or days (7d).",
)
@click.option(
    "--table",
    envvar="FLEETCAST_REGION_SCORES_TABLE",
    show_envvar=True,
    required=True,
    metavar="NAME",
    help="The deployment's RegionScores table.",
)
@click.option(
    "--fleet-table",
    envvar="FLEETCAST_FLEET_TABLE",
    show_envvar=True,
    required=True,
    metavar="NAME",
    help="The deployment's Fleet table.",
)
@click.option(
    "--account",
    "account_id",
    metavar="ID",
    help="Whose launches to place again; by default, those of the credentials' account.",
)
@click.option("--type", "instance_type", metavar="TYPE", help="Only this instance type.")
@click.option(
    "--tie-band",
    type=click.FloatRange(min=0),
    default=DEFAULT_TIE_BAND,
    show_default=True,
    help="As launching.tie_band in cdk.json.",
)
@click.option(
    "--max-score-age",
    "max_score_age_s",
    type=click.FloatRange(min=0),
    default=DEFAULT_MAX_SCORE_AGE_S,
    show_default=True,
    metavar="SECONDS",
    help="As launching.max_score_age_s in cdk.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(  # noqa: PLR0913 - one for each option
    *,
    weights_file: BinaryIO,
    since_s: float,
    table: str,
    fleet_table: str,
    account_id: str | None,
    instance_type: str | None,
    tie_band: float,
    max_score_age_s: float,
    as_json: bool,
) -> None:
    """Show how many launches other weights would have sent elsewhere.

    Each launch is placed again by the scores that were in force when it was made. A region that
    it asked in vain counts as full, any other as having room. Launches that no region took are
    only counted: none had room, whatever the order.

    Below stands what holds without any launch: the first choices of each past sweep.

    Needs dynamodb:Query on both tables.
    """
    weights = _read_weights(weights_file)
    began_s = time.time() - since_s
    with Console(stderr=True).status("Reading") as progress:
        client, account_id = _connect(account_id)
        launches = [
            launch
            for launch in _read_launches(
                client, fleet_table, progress, account_id=account_id, since_s=began_s
            )
            if instance_type in {None, launch.instance_type}
        ]
        regions = {launch.region for launch in launches if launch.region}
        moved = MovedLaunches(launches, max_score_age_s=max_score_age_s, tie_band=tie_band)
        choices = FirstChoices(tie_band=tie_band)
        times_s: list[float] = []
        records = _read_records(client, table, regions, since_s=began_s)
        rescored = (rescore(record, weights, only_type=instance_type) for record in records)
        for sweep in group_sweeps(rescored):
            progress.update(f"Reading {table}: sweeps until {minute(sweep[0].computed_at_s)} UTC")
            moved.add(sweep)
            if sweep[0].computed_at_s >= began_s:
                choices.add(sweep)
                times_s.append(sweep[0].computed_at_s)
    types = choices.result()
    if not types:
        what = f"of {instance_type} " if instance_type else ""
        raise click.ClickException(f"table {table} has no scores {what}from that time")
    found = Replay(
        account_id=account_id,
        launches=moved.result(),
        from_s=times_s[0],
        to_s=times_s[-1],
        types=tuple(types),
    )
    if as_json:
        print_json(found)
    else:
        output_console().print(replay_view(found))


def _read_weights(file: BinaryIO) -> Weights:
    """Read weights. Not by msgspec: it couldn't name the weight that is NaN or no number."""
    try:
        mapping = json.loads(file.read())
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--weights") from error
    if not isinstance(mapping, dict):
        raise click.BadParameter("no JSON object of weights", param_hint="--weights")
    try:
        return Weights.from_mapping(mapping)
    except InvalidWeights as error:
        raise click.BadParameter(str(error), param_hint="--weights") from error


def _connect(account_id: str | None) -> tuple[DynamoDBClient, str]:
    """Return a client, and the account asked for or else the credentials' own."""
    session = boto3.Session()
    with _explained("the AWS account can't be told; give --account"):
        client = session.client("dynamodb")
        return client, account_id or session.client("sts").get_caller_identity()["Account"]


def _read_launches(
    client: DynamoDBClient, table: str, progress: Status, *, account_id: str, since_s: float
) -> list[PastLaunch]:
    launches: list[PastLaunch] = []
    with _explained(f"table {table} can't be read"):
        for page in pages_of_launches(client, table, account_id=account_id, since_s=since_s):
            launches += page
            progress.update(f"Reading {table}: {len(launches)} launches")
    return launches


def _read_records(
    client: DynamoDBClient, table: str, regions: set[str], *, since_s: float
) -> Iterator[SweepRecord]:
    """Yield the records of these and all scored regions, oldest first."""
    with _explained(f"table {table} can't be read"):
        regions = regions | scored_regions(client, table)
        yield from records_in_order(client, table, regions, since_s=since_s)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say in words what AWS objects to. Raises click.ClickException."""
    try:
        yield
    except NoRegionError as error:
        raise click.ClickException("no AWS region is configured; give AWS_REGION") from error
    except NoCredentialsError as error:
        raise click.ClickException(NO_CREDENTIALS) from error
    except (BotoCoreError, ClientError, InvalidInput) as error:
        raise click.ClickException(f"{what}: {error}") from error
