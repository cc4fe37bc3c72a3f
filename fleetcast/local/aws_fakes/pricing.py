"""The Price List Query API (JSON 1.1): GetProducts for EC2 instances.

Beside the product that is wanted, each type has the ones that a careless filter also finds:
Windows, dedicated, with SQL Server, unused reservations, capacity blocks.
Shapes: Price List API reference, GetProducts; price list files for services.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from fleetcast.local.aws_fakes.call import Answer, Call, page_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.local.aws_fakes.scenario import Scenario

ON_DEMAND_TERM = "JRTCKXETXF"
HOURLY_RATE = "6YS6EN2CT7"
MAX_RESULTS = 100

WANTED = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
# What differs from WANTED, and the product's price as a multiple of the wanted one's.
OTHER_PRODUCTS: list[tuple[dict[str, str], float]] = [
    ({"operatingSystem": "Windows"}, 1.9),
    ({"tenancy": "Dedicated"}, 1.06),
    ({"preInstalledSw": "SQL Std"}, 9.0),
    ({"capacitystatus": "UnusedCapacityReservation"}, 1.0),
    ({"marketoption": "CapacityBlock"}, 0.0),
]


def decode(target: str, body: bytes, region: str, *, at_s: float) -> Call:
    """Decode a JSON body; the action stands in the X-Amz-Target header."""
    parameters: dict[str, Any] = msgspec.json.decode(body or b"{}")
    return Call(
        action=target.rpartition(".")[2],
        region=region,
        parameters=parameters,
        instance_types=tuple(
            entry["Value"]
            for entry in parameters.get("Filters", [])
            if entry["Field"] == "instanceType"
        ),
        at_s=at_s,
    )


def answer(call: Call, scenario: Scenario) -> Answer:
    """Answer a call from the scenario."""
    failure = scenario.failure_of(call)
    if call.action != "GetProducts" or failure == "invalid_action":
        return error("UnknownOperationException", f"no operation {call.action}")
    products = [] if failure == "nothing" else list(_products(call, scenario))
    size = min(scenario.page_size, int(call.parameters.get("MaxResults", MAX_RESULTS)))
    page, token = page_of(products, call, size=size, first_empty=failure == "empty_page")
    content: dict[str, Any] = {
        "FormatVersion": "aws_v1",
        "PriceList": [msgspec.json.encode(product).decode() for product in page],
    }
    if token is not None:
        content["NextToken"] = token
    return _json(200, content)


def error(code: str, message: str) -> Answer:
    """Answer with an error in the protocol's form."""
    return _json(400, {"__type": code, "Message": message})


def _products(call: Call, scenario: Scenario) -> Iterator[dict[str, Any]]:
    filters = {entry["Field"]: entry["Value"] for entry in call.parameters.get("Filters", [])}
    for region, types in scenario.prices.items():
        for instance_type, prices in types.items():
            if prices.on_demand_usd_per_hour is None:
                continue
            for differing, factor in [({}, 1.0), *OTHER_PRODUCTS]:
                attributes = {
                    **WANTED,
                    **differing,
                    "instanceType": instance_type,
                    "regionCode": region,
                    "location": region,
                    "locationType": "AWS Region",
                    "operation": "RunInstances",
                    "servicecode": "AmazonEC2",
                }
                if filters.items() <= attributes.items():
                    yield _product(attributes, prices.on_demand_usd_per_hour * factor)


def _product(attributes: dict[str, str], usd_per_hour: float) -> dict[str, Any]:
    identity = repr(sorted(attributes.items())).encode()
    sku = hashlib.sha256(identity).hexdigest()[:16].upper()
    offer = f"{sku}.{ON_DEMAND_TERM}"
    rate = f"{offer}.{HOURLY_RATE}"
    dimension = {
        "rateCode": rate,
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "description": f"${usd_per_hour} per On Demand {attributes['instanceType']} Instance Hour",
        "appliesTo": [],
        "pricePerUnit": {"USD": f"{usd_per_hour:.10f}"},
    }
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku},
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                offer: {
                    "priceDimensions": {rate: dimension},
                    "sku": sku,
                    "effectiveDate": "2026-01-01T00:00:00Z",
                    "offerTermCode": ON_DEMAND_TERM,
                    "termAttributes": {},
                }
            }
        },
        "version": "20260101000000",
        "publicationDate": "2026-01-01T00:00:00Z",
    }


def _json(status: int, content: dict[str, Any]) -> Answer:
    return Answer(
        status=status,
        content_type="application/x-amz-json-1.1",
        body=msgspec.json.encode(content),
    )
