"""What spot instances cost now: EC2's spot price history, all types of a region in one call."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING

from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mypy_boto3_ec2.type_defs import SpotPriceTypeDef

    from lambdas.score_regions.clients import AwsClients

SPOT_PRICE = "spot_price_usd_per_hour"
MAX_FILTER_VALUES = 200


def spot_price_probe(
    region_name: str, instance_types: Sequence[str], clients: AwsClients, *, now_s: float
) -> Probe:
    """Read each type's mean spot price over the zones of a region, Linux, US dollars an hour."""
    keys = {name: SignalKey(SPOT_PRICE, region_name, name) for name in instance_types}

    def read() -> dict[SignalKey, Reading]:
        # A zone's newest entry is its current price.
        newest: dict[tuple[str, str], SpotPriceTypeDef] = {}
        for entry in price_history(
            # Starting now: the prices that hold now.
            clients,
            region_name,
            instance_types,
            start=datetime.fromtimestamp(now_s, UTC),
        ):
            place = (entry["InstanceType"], entry["AvailabilityZone"])
            if place not in newest or entry["Timestamp"] > newest[place]["Timestamp"]:
                newest[place] = entry
        by_type: defaultdict[str, list[float]] = defaultdict(list)
        for (instance_type, _), entry in newest.items():
            by_type[instance_type].append(float(entry["SpotPrice"]))
        return {
            key: price_reading(fmean(by_type[name]), observed_at_s=now_s)
            for name, key in keys.items()
            if name in by_type
        }

    return Probe(name=f"spot prices of {region_name}", expects=tuple(keys.values()), read=read)


def price_reading(usd_per_hour: float, *, observed_at_s: float) -> Reading:
    """Record a price; one that isn't above 0 can't be right."""
    if usd_per_hour <= 0:
        return Reading.absent("failed", f"a price of {usd_per_hour}")
    return Reading.of(usd_per_hour, observed_at_s=observed_at_s)


def price_history(
    clients: AwsClients, region_name: str, instance_types: Sequence[str], *, start: datetime
) -> Iterator[SpotPriceTypeDef]:
    """Yield what Linux spot instances of these types have cost since the start, in each zone.

    That includes the price that held at the start. Raises botocore's errors.
    """
    paginator = clients.ec2(region_name).get_paginator("describe_spot_price_history")
    for first in range(0, len(instance_types), MAX_FILTER_VALUES):
        # A filter passes over types that EC2 doesn't know (a fleet's own); the parameter
        # InstanceTypes would fail the whole call.
        pages = paginator.paginate(
            ProductDescriptions=["Linux/UNIX"],
            Filters=[
                {
                    "Name": "instance-type",
                    "Values": list(instance_types[first : first + MAX_FILTER_VALUES]),
                }
            ],
            StartTime=start,
        )
        for page in pages:
            yield from page["SpotPriceHistory"]
