"""Capacity blocks on offer: EC2's DescribeCapacityBlockOfferings, for families that have any."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from fleetcast.scoring import CAPACITY_BLOCK_WEEKS, Reading, capacity_block_trend
from lambdas.score_regions.collection import Probe, SignalKey
from lambdas.score_regions.memory import DAY_S, Series

if TYPE_CHECKING:
    from lambdas.score_regions.clients import AwsClients

OFFERS: Final = "capacity_block_offers"
WINDOW_TREND: Final = "capacity_block_window_trend"
BLOCK_SIGNALS: Final = (OFFERS, WINDOW_TREND)
BLOCKS_HOLD_S: Final = 3_600.0  # they start days ahead
OFFERS_KEPT: Final = Series(bin_s=DAY_S, kept_s=60 * DAY_S)
SHORTEST_BLOCK_HOURS: Final = 24
NOT_SOLD_THERE: Final = frozenset({"InvalidAction", "UnsupportedOperation"})
WEEK: Final = timedelta(weeks=1)

_SOLD_AS_BLOCKS: Final = re.compile(r"(p|trn)\d")


def is_sold_as_blocks(instance_type: str) -> bool:
    """Tell whether EC2 sells capacity blocks of a type: of the p and trn families."""
    return _SOLD_AS_BLOCKS.match(instance_type) is not None


def capacity_blocks_probe(
    region_name: str, instance_type: str, clients: AwsClients, *, now_s: float
) -> Probe:
    """Read what is on offer of a type in a region over the coming CAPACITY_BLOCK_WEEKS weeks.

    capacity_block_offers: how many blocks. capacity_block_window_trend: -1 to 1, whether more of
    them start late than early.
    """
    offers, trend = (SignalKey(name, region_name, instance_type) for name in BLOCK_SIGNALS)

    def read() -> dict[SignalKey, Reading]:
        now = datetime.fromtimestamp(now_s, UTC)
        pages = (
            clients.ec2(region_name)
            .get_paginator("describe_capacity_block_offerings")
            .paginate(
                InstanceType=instance_type,
                InstanceCount=1,
                CapacityDurationHours=SHORTEST_BLOCK_HOURS,
                StartDateRange=now,
                EndDateRange=now + CAPACITY_BLOCK_WEEKS * WEEK,
            )
        )
        weekly = [0] * CAPACITY_BLOCK_WEEKS
        for page in pages:
            for offering in page["CapacityBlockOfferings"]:
                week = (offering["StartDate"] - now) // WEEK
                if 0 <= week < CAPACITY_BLOCK_WEEKS:
                    weekly[week] += 1
        if not any(weekly):
            # The same as where none are sold: an answer that lost its offers must not be better
            # than no answer.
            return dict.fromkeys(
                (offers, trend), Reading.absent("not_offered", "no capacity block is on offer")
            )
        return {
            offers: Reading.of(sum(weekly), observed_at_s=now_s),
            trend: Reading.of(capacity_block_trend(weekly), observed_at_s=now_s),
        }

    return Probe(
        name=f"capacity blocks of {instance_type} in {region_name}",
        expects=(offers, trend),
        read=read,
        not_offered=NOT_SOLD_THERE,
    )
