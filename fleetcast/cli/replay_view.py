"""What `fleetcast scores replay` has found, and how it is shown to people."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from fleetcast.cli.first_choices import TypeReplay
from fleetcast.cli.moved_launches import LaunchesReplay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What the command found.

    launches: the account's. types: the first choices of the sweeps, the oldest of which began at
    from_s and the newest at to_s, epoch s.
    """

    account_id: str
    launches: LaunchesReplay
    from_s: float
    to_s: float
    types: tuple[TypeReplay, ...]


def replay_view(found: Replay) -> RenderableType:
    """Return what is printed."""
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
    return Group(
        *_launches_view(found.account_id, found.launches),
        f"First choices of the sweeps from {minute(found.from_s)} to {minute(found.to_s)} UTC",
        table,
    )


def minute(at_s: float) -> str:
    """Write a time, epoch s, as UTC to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s))


def _launches_view(account_id: str, launches: LaunchesReplay) -> Iterator[RenderableType]:
    if launches.placed:
        yield (
            f"{launches.elsewhere:,} of {launches.placed:,} launches of account {account_id} would "
            "have gone elsewhere"
        )
    else:
        yield f"No region took a launch of account {account_id} in that time"
    if launches.indifferent:
        yield (
            f"Of these, no weights could have moved {launches.indifferent:,}: pinned to a place, "
            "of a type without scores, or made when no region's load was known"
        )
    if launches.unplaced:
        yield f"Launches that no region is known to have taken: {launches.unplaced:,} more"
    if launches.moves:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("went to")
        table.add_column("would have gone to")
        table.add_column("launches", justify="right")
        for move in launches.moves:
            table.add_row(move.from_region, move.to_region, f"{move.launches:,}")
        yield table
    else:
        yield ""


def _shares_text(shares: dict[str, float]) -> str:
    return "\n".join(f"{region} {share:.0%}" for region, share in shares.items())
