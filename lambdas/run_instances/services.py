"""What the actions work with: handed in, so that a test decides on time, ids and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.instance_types import Catalogue
    from lambdas.fleet_table import FleetTable
    from lambdas.region_scores import RegionScoresTable
    from lambdas.run_instances.placement import Asker
    from lambdas.settings import RunInstancesSettings


@dataclass(frozen=True, kw_only=True)
class Services:
    """The process's side of an action.

    now_s: epoch seconds. clock_s: monotonic seconds. random_hex: that many hex digits.
    """

    settings: RunInstancesSettings
    instance_types: Catalogue
    fleet: FleetTable
    scores: RegionScoresTable
    ask: Asker
    now_s: Callable[[], float]
    clock_s: Callable[[], float]
    random_hex: Callable[[int], str]


@dataclass(frozen=True, kw_only=True)
class Call:
    """The caller's side of an action. deadline_s: when it must be answered, on the clock."""

    account_id: str
    request_id: str
    deadline_s: float
