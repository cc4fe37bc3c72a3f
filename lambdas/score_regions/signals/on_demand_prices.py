"""What a type costs on demand: the Price List API, all regions in one answer."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from lambdas.score_regions.collection import Probe, SignalKey
from lambdas.score_regions.signals.spot_prices import price_reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mypy_boto3_pricing.type_defs import FilterTypeDef

    from fleetcast.scoring import Reading
    from lambdas.score_regions.clients import AwsClients

ON_DEMAND_PRICE = "on_demand_price_usd_per_hour"

# Without marketoption, capacity blocks of the p families come too, at a price of 0.
LINUX_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


class _Attributes(msgspec.Struct):
    region_code: str = msgspec.field(name="regionCode")


class _Product(msgspec.Struct):
    attributes: _Attributes


class _Dimension(msgspec.Struct):
    price_per_unit: dict[str, str] = msgspec.field(name="pricePerUnit")
    unit: str


class _Term(msgspec.Struct):
    dimensions: dict[str, _Dimension] = msgspec.field(name="priceDimensions")


class _Terms(msgspec.Struct):
    on_demand: dict[str, _Term] = msgspec.field(name="OnDemand", default_factory=dict)


class _Listing(msgspec.Struct):
    """The little that is wanted of an entry, which is mostly reserved-instance terms."""

    product: _Product
    terms: _Terms


def on_demand_price_probe(
    instance_type: str, region_names: Sequence[str], clients: AwsClients, *, now_s: float
) -> Probe:
    """Read a type's on-demand price in each region, Linux, US dollars an hour."""
    keys = {name: SignalKey(ON_DEMAND_PRICE, name, instance_type) for name in region_names}

    def read() -> dict[SignalKey, Reading]:
        by_region: defaultdict[str, list[float]] = defaultdict(list)
        for listing in _listings(clients, instance_type):
            by_region[listing.product.attributes.region_code] += _hourly_usd(listing)
        # Were there two, the lower one makes the spot price look no better than it is.
        return {
            key: price_reading(min(by_region[name]), observed_at_s=now_s)
            for name, key in keys.items()
            if by_region[name]
        }

    return Probe(
        name=f"on-demand prices of {instance_type}", expects=tuple(keys.values()), read=read
    )


def _listings(clients: AwsClients, instance_type: str) -> Iterator[_Listing]:
    filters: list[FilterTypeDef] = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {"instanceType": instance_type, **LINUX_ON_DEMAND}.items()
    ]
    pages = (
        clients.pricing()
        .get_paginator("get_products")
        .paginate(ServiceCode="AmazonEC2", FormatVersion="aws_v1", Filters=filters)
    )
    for page in pages:
        for listing in page["PriceList"]:
            yield msgspec.json.decode(listing, type=_Listing)


def _hourly_usd(listing: _Listing) -> Iterator[float]:
    for term in listing.terms.on_demand.values():
        for dimension in term.dimensions.values():
            if dimension.unit == "Hrs" and "USD" in dimension.price_per_unit:
                yield float(dimension.price_per_unit["USD"])
