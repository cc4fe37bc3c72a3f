"""What the actions work with: handed in, so that a test decides on time, ids and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from fleetcast.instance_types import Catalogue
    from lambdas.claims import RegionBus
    from lambdas.fleet_table import FleetTable
    from lambdas.region_scores import RegionScoresTable
    from lambdas.run_instances.refusals import RefusalMemory
    from lambdas.settings import RunInstancesSettings


@dataclass(frozen=True, kw_only=True)
class Services:
    """The process's side of an action.

    known_nodes: the names of the nodes that a region is known to have; it reads the table, so it is
    called on a thread. now_s: epoch seconds.
    clock_s: monotonic seconds. sleep: in seconds. random_hex: that many hex digits.
    """

    settings: RunInstancesSettings
    instance_types: Catalogue
    fleet: FleetTable
    scores: RegionScoresTable
    bus: RegionBus
    known_nodes: Callable[[str], Collection[str]]
    refusals: RefusalMemory
    now_s: Callable[[], float]
    clock_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    random_hex: Callable[[int], str]


@dataclass(frozen=True, kw_only=True)
class Call:
    """The caller's side of an action.

    deadline_s: when it must be answered, on the clock. region: the one whose endpoint was called,
    one of the fleet's; None at the endpoint for all.
    """

    account_id: str
    request_id: str
    deadline_s: float
    region: str | None = None
