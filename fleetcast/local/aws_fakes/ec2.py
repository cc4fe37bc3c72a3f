"""EC2's Query protocol, for the actions that the emulators lack.

Shapes: EC2 API reference, DescribeSpotPriceHistory and "Error codes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl
from xml.etree import ElementTree as ET

from fleetcast.local.aws_fakes.call import Answer, Call, page_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetcast.local.aws_fakes.scenario import Scenario

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
PRODUCT = "Linux/UNIX"
REQUEST_ID = "00000000-0000-4000-8000-000000000000"
# The price of an entry holds since then; any time in the past will do.
CHANGED_AT = "2026-01-01T00:00:00.000Z"


class SpotPrice(NamedTuple):
    """One entry of the history."""

    instance_type: str
    zone: str
    usd_per_hour: float


def decode(body: bytes, region: str) -> Call:
    """Decode a form body."""
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    named = [value for name, value in form.items() if name.startswith("InstanceType.")]
    return Call(
        action=form.get("Action", ""),
        region=region,
        parameters=form,
        instance_types=(*named, *_filter_values(form, "instance-type")),
    )


def answer(call: Call, scenario: Scenario) -> Answer:
    """Answer a call from the scenario."""
    if call.action != "DescribeSpotPriceHistory":
        return error(
            "InvalidAction", f"The action {call.action} is not valid for this web service."
        )
    failure = scenario.failure_of(call)
    prices = [] if failure == "nothing" else list(_spot_prices(call, scenario))
    size = min(scenario.page_size, int(call.parameters.get("MaxResults") or scenario.page_size))
    page, token = page_of(prices, call, size=size, first_empty=failure == "empty_page")

    root = ET.Element(f"{call.action}Response", xmlns=NAMESPACE)
    ET.SubElement(root, "requestId").text = REQUEST_ID
    history = ET.SubElement(root, "spotPriceHistorySet")
    for price in page:
        item = ET.SubElement(history, "item")
        ET.SubElement(item, "instanceType").text = price.instance_type
        ET.SubElement(item, "productDescription").text = PRODUCT
        ET.SubElement(item, "spotPrice").text = f"{price.usd_per_hour:.6f}"
        ET.SubElement(item, "timestamp").text = CHANGED_AT
        ET.SubElement(item, "availabilityZone").text = price.zone
    ET.SubElement(root, "nextToken").text = token or ""  # EC2 sends it empty on the last page
    return _xml(200, root)


def error(code: str, message: str) -> Answer:
    """Answer with an error in EC2's form."""
    root = ET.Element("Response")
    entry = ET.SubElement(ET.SubElement(root, "Errors"), "Error")
    ET.SubElement(entry, "Code").text = code
    ET.SubElement(entry, "Message").text = message
    ET.SubElement(root, "RequestID").text = REQUEST_ID
    return _xml(403 if code == "UnauthorizedOperation" else 400, root)


def _spot_prices(call: Call, scenario: Scenario) -> Iterator[SpotPrice]:
    products = [v for name, v in call.parameters.items() if name.startswith("ProductDescription.")]
    if products and PRODUCT not in products:
        return
    for instance_type, prices in scenario.prices.get(call.region, {}).items():
        if not call.instance_types or instance_type in call.instance_types:
            for zone, usd_per_hour in prices.spot_usd_per_hour.items():
                yield SpotPrice(instance_type, zone, usd_per_hour)


def _filter_values(form: dict[str, str], wanted: str) -> list[str]:
    """The values of `Filter.N.Value.M` where `Filter.N.Name` is the wanted one."""
    prefixes = [
        name.removesuffix("Name") + "Value."
        for name, value in form.items()
        if name.startswith("Filter.") and name.endswith(".Name") and value == wanted
    ]
    return [value for name, value in form.items() if name.startswith(tuple(prefixes))]


def _xml(status: int, root: ET.Element) -> Answer:
    return Answer(
        status=status,
        content_type="text/xml;charset=UTF-8",
        body=ET.tostring(root, encoding="UTF-8", xml_declaration=True),
    )
