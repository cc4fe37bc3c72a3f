"""A scenario for showing: regions that differ, and whose prices and scores move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.local.aws_fakes.capacity_blocks import SOLD_AS_BLOCKS, ZONES
from fleetcast.local.aws_fakes.movement import Movement
from fleetcast.local.aws_fakes.scenario import Prices, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEARER_BY = 0.15  # on demand, than in the cheapest region
SPOT_PART = 0.4  # of the on-demand price, before it moves
PLACEMENT = 6
BLOCKS_A_WEEK = 4
WEEKS = 8  # a block starts at most so far ahead: EC2 User Guide, "Capacity Blocks for ML"
MOST_A_PAGE = 1000


def plausible_scenario(
    regions: Iterable[str],
    usd_per_hour: Mapping[str, float],
    *,
    movement: Movement = Movement(),  # noqa: B008 - it is frozen
) -> Scenario:
    """Make up what the fakes know of these regions; the same for the same arguments.

    usd_per_hour: the on-demand price of each type in the cheapest region. The movement's seed also
    decides how dear each region is, and whether it has its capacity blocks soon or late.
    """
    names = tuple(regions)
    return Scenario(
        prices={
            region: {
                name: _prices(region, usd * (1 + DEARER_BY * _share(movement, region)))
                for name, usd in usd_per_hour.items()
            }
            for region in names
        },
        spot_placement={region: dict.fromkeys(usd_per_hour, PLACEMENT) for region in names},
        capacity_blocks={
            region: {
                name: _weekly_blocks(_share(movement, f"blocks of {name} in {region}"))
                for name in usd_per_hour
                if SOLD_AS_BLOCKS.match(name)
            }
            for region in names
        },
        movement=movement,
        page_size=MOST_A_PAGE,
    )


def _share(movement: Movement, name: str) -> float:
    """Draw a number from 0 to 1 for a name."""
    return (1 + movement.level(name, 0.0)) / 2


def _prices(region: str, usd_per_hour: float) -> Prices:
    return Prices(
        on_demand_usd_per_hour=round(usd_per_hour, 4),
        spot_usd_per_hour={
            f"{region}{zone}": round(usd_per_hour * SPOT_PART, 4) for zone in ZONES[:2]
        },
    )


def _weekly_blocks(growth: float) -> tuple[int, ...]:
    """Count the blocks of each week. growth: 0, all at first, to 1, all at the end."""
    return tuple(
        round(2 * BLOCKS_A_WEEK * (growth * week + (1 - growth) * (WEEKS - 1 - week)) / (WEEKS - 1))
        for week in range(WEEKS)
    )
