"""`fleetcast scores replay`: rank the sweeps of the past under other weights.

Reads the RegionScores table itself, not the API: a fleet's history is too much for one answer.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

import boto3
import click
import msgspec
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
)
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from fleetcast.cli.first_choices import TypeReplay, replay_first_choices
from fleetcast.cli.scores_api import NO_CREDENTIALS
from fleetcast.cli.terminal import output_console, print_json
from fleetcast.errors import InvalidInput, InvalidWeights
from fleetcast.score_history import (
    RECORD_ATTRIBUTE,
    SweepRecord,
    decode_record,
    history_partition,
    history_sort_key,
)
from fleetcast.scoring import Weights
from fleetcast.selection import DEFAULT_TIE_BAND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from mypy_boto3_dynamodb import DynamoDBClient
    from rich.console import RenderableType

_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400}
_EXAMPLES: Final = """\b
Examples:
  fleetcast scores replay --weights new.json --since 24h --table TABLE
  fleetcast scores replay --weights new.json --since 7d --table TABLE --type t3.medium

\b
new.json, e.g. to go by price before all else:
  {"spot_placement": 0.2, "spot_price_ratio": 0.5, "queue_depth": 0.1,
   "gpu_utilization": 0.1, "running_jobs": 0.05, "capacity_block_trend": 0.05}
"""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What the command found. from_s, to_s: when the oldest and newest sweep began, epoch s."""

    from_s: float
    to_s: float
    types: tuple[TypeReplay, ...]


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
@click.option("--type", "instance_type", metavar="TYPE", help="Only this instance type.")
@click.option(
    "--tie-band",
    type=click.FloatRange(min=0),
    default=DEFAULT_TIE_BAND,
    show_default=True,
    help="As launching.tie_band in cdk.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    *,
    weights_file: BinaryIO,
    since_s: float,
    table: str,
    instance_type: str | None,
    tie_band: float,
    as_json: bool,
) -> None:
    """Show which part of the launches other weights would have sent elsewhere.

    Each past sweep is ranked again, type by type. What is compared is the first choice that the
    sweep gave to launches, not the launches that were made: their records don't outlive them.
    """
    weights = _read_weights(weights_file)
    records = _read_records(table, since_s=time.time() - since_s)
    types = [
        one
        for one in replay_first_choices(records, weights, tie_band=tie_band)
        if instance_type in {None, one.instance_type}
    ]
    if not types:
        what = f"of {instance_type} " if instance_type else ""
        raise click.ClickException(f"table {table} has no scores {what}from that time")
    times_s = [record.computed_at_s for record in records]
    found = Replay(from_s=min(times_s), to_s=max(times_s), types=tuple(types))
    if as_json:
        print_json(found)
    else:
        output_console().print(_view(found))


def _read_weights(file: BinaryIO) -> Weights:
    try:
        mapping = msgspec.json.decode(file.read(), type=dict[str, float])
        return Weights.from_mapping(mapping)
    except msgspec.DecodeError as error:
        raise click.BadParameter(
            f"no JSON object of numbers: {error}", param_hint="--weights"
        ) from error
    except InvalidWeights as error:
        raise click.BadParameter(str(error), param_hint="--weights") from error


def _read_records(table: str, *, since_s: float) -> list[SweepRecord]:
    """Read all regions' records, showing how far it is. Raises click.ClickException."""
    records: list[SweepRecord] = []
    with Console(stderr=True).status(f"Reading {table}") as progress:
        try:
            client = boto3.Session().client("dynamodb")
            for region in _scored_regions(client, table):
                for page in _pages_of_records(client, table, region, since_s=since_s):
                    records += page
                    progress.update(f"{region}: {len(records)} records")
        except NoRegionError as error:
            raise click.ClickException("no AWS region is configured; give AWS_REGION") from error
        except NoCredentialsError as error:
            raise click.ClickException(NO_CREDENTIALS) from error
        except (BotoCoreError, ClientError, InvalidInput) as error:
            raise click.ClickException(f"table {table} can't be read: {error}") from error
    return records


def _scored_regions(client: DynamoDBClient, table: str) -> list[str]:
    """Return the regions that have a score now: those whose history can matter."""
    pages = client.get_paginator("query").paginate(
        TableName=table,
        KeyConditionExpression="pk = :pk",
        ProjectionExpression="sk",
        ExpressionAttributeValues={":pk": {"S": "TYPE#*"}},
    )
    return [item["sk"]["S"].removeprefix("REGION#") for page in pages for item in page["Items"]]


def _pages_of_records(
    client: DynamoDBClient, table: str, region: str, *, since_s: float
) -> Iterator[Sequence[SweepRecord]]:
    pages = client.get_paginator("query").paginate(
        TableName=table,
        KeyConditionExpression="pk = :pk AND sk >= :since",
        ExpressionAttributeValues={
            ":pk": {"S": history_partition(region)},
            ":since": {"S": history_sort_key(since_s)},
        },
    )
    for page in pages:
        yield [decode_record(item[RECORD_ATTRIBUTE]["B"]) for item in page["Items"]]


def _view(found: Replay) -> RenderableType:
    began, ended = (
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s)) for at_s in (found.from_s, found.to_s)
    )
    table = Table(box=SIMPLE_HEAD)
    table.add_column("type", no_wrap=True)
    table.add_column("sweeps", justify="right")
    table.add_column("before")
    table.add_column("under these weights")
    table.add_column("would have gone elsewhere", justify="right")
    for one in found.types:
        table.add_row(
            one.instance_type,
            f"{one.sweeps:,}",
            _shares_text(one.before),
            _shares_text(one.after),
            f"{one.elsewhere_share:.1%}",
        )
    return Group(f"First choices of the sweeps from {began} to {ended} UTC", table)


def _shares_text(shares: dict[str, float]) -> str:
    return "\n".join(f"{region} {share:.0%}" for region, share in shares.items())
