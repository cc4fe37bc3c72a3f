"""DescribeSpotPriceHistory: the prices that held since the start that is asked for.

Without movement each has been the same for ever. Source: EC2 API reference.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from fleetcast.local.aws_fakes.times import epoch_s, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.local.aws_fakes.call import Call
    from fleetcast.local.aws_fakes.scenario import Scenario

PRODUCT = "Linux/UNIX"
# The price of an entry holds since then; any time in the past will do.
UNMOVED_SINCE_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
REACHES_BACK_S = 90 * 86_400.0


class SpotPrice(NamedTuple):
    """One entry of the history."""

    since_s: float
    instance_type: str
    zone: str
    usd_per_hour: float


def spot_price_history(call: Call, scenario: Scenario) -> list[dict[str, str]]:
    """List the prices in effect from StartTime to EndTime, newest first.

    That includes each one's last change before the start: with a start of now, what holds now.
    """
    products = call.values_of("ProductDescription")
    if products and PRODUCT not in products:
        return []
    newest_first = sorted(_prices(call, scenario), key=lambda price: -price.since_s)
    return [
        {
            "instanceType": price.instance_type,
            "productDescription": PRODUCT,
            "spotPrice": f"{price.usd_per_hour:.6f}",
            "timestamp": timestamp(price.since_s),
            "availabilityZone": price.zone,
        }
        for price in newest_first
    ]


def _prices(call: Call, scenario: Scenario) -> Iterator[SpotPrice]:
    end_s = min(epoch_s(call.parameters.get("EndTime"), call.at_s), call.at_s)
    oldest_s = call.at_s - REACHES_BACK_S
    # A start of now by the client's clock may lie ahead of ours.
    start_s = min(max(epoch_s(call.parameters.get("StartTime"), oldest_s), oldest_s), end_s)
    movement = scenario.movement
    for instance_type, prices in scenario.prices.get(call.region, {}).items():
        if call.instance_types and instance_type not in call.instance_types:
            continue
        for zone, usd_per_hour in prices.spot_usd_per_hour.items():
            if movement is None:
                yield SpotPrice(UNMOVED_SINCE_S, instance_type, zone, usd_per_hour)
                continue
            name = f"spot price of {instance_type} in {zone}"
            for since_s in movement.changes(name, start_s, end_s):
                moved = usd_per_hour * movement.factor(name, since_s)
                yield SpotPrice(since_s, instance_type, zone, moved)
