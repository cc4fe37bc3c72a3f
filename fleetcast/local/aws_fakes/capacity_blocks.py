"""DescribeCapacityBlockOfferings: blocks of a type that can be bought, by when they start.

Source: EC2 API reference; EC2 User Guide, "Capacity Blocks for ML".
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from fleetcast.local.aws_fakes.call import Refused
from fleetcast.local.aws_fakes.times import epoch_s, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.local.aws_fakes.call import Call
    from fleetcast.local.aws_fakes.scenario import Scenario

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
STARTS_AT_S = 11.5 * 3600  # each block starts and ends at 11:30 UTC
SOLD_AS_BLOCKS = re.compile(r"(p|trn)\d")
ZONES = "abc"


def capacity_block_offerings(call: Call, scenario: Scenario) -> list[dict[str, str]]:
    """List the offerings that start in the range asked for, earliest first. Raises Refused."""
    instance_type = call.required("InstanceType")
    hours, instances = int(call.required("CapacityDurationHours")), call.required("InstanceCount")
    if call.region not in scenario.capacity_blocks:
        raise Refused(
            "UnsupportedOperation",
            "The functionality you requested is not available in this region.",
        )
    if not SOLD_AS_BLOCKS.match(instance_type):
        raise Refused(
            "InvalidParameterValue", f"Capacity Blocks are not offered for {instance_type}."
        )
    earliest_s = epoch_s(call.parameters.get("StartDateRange"), call.at_s)
    latest_s = epoch_s(call.parameters.get("EndDateRange"), float("inf"))
    prices = scenario.prices.get(call.region, {}).get(instance_type)
    usd_per_hour = (prices and prices.on_demand_usd_per_hour) or 1.0
    return [
        {
            "capacityBlockOfferingId": _offering_id(instance_type, zone, start_s),
            "instanceType": instance_type,
            "availabilityZone": zone,
            "instanceCount": instances,
            "startDate": timestamp(start_s),
            "endDate": timestamp(start_s + hours * 3600),
            "capacityBlockDurationHours": str(hours),
            "upfrontFee": f"{usd_per_hour * hours * int(instances):.6f}",
            "currencyCode": "USD",
            "tenancy": "default",
        }
        for start_s, zone in _starts(call, scenario, instance_type)
        if earliest_s <= start_s <= latest_s
    ]


def _starts(call: Call, scenario: Scenario, instance_type: str) -> Iterator[tuple[float, str]]:
    """Yield when and where each block starts, spread over the days of its week."""
    next_start_s = (call.at_s - STARTS_AT_S) // DAY_S * DAY_S + DAY_S + STARTS_AT_S
    for week, count in enumerate(scenario.capacity_blocks[call.region].get(instance_type, ())):
        week_s = next_start_s + week * WEEK_S
        name = f"capacity blocks of {instance_type} in {call.region}, week {week}"
        factor = scenario.movement.factor(name, call.at_s) if scenario.movement else 1.0
        offered = round(count * factor)
        for number in range(offered):
            zone = f"{call.region}{ZONES[number % len(ZONES)]}"
            yield week_s + number * 7 // offered * DAY_S, zone


def _offering_id(instance_type: str, zone: str, start_s: float) -> str:
    identity = f"{instance_type} {zone} {start_s}".encode()
    return f"cbr-{hashlib.sha256(identity).hexdigest()[:17]}"
