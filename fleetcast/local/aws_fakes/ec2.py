"""EC2's Query protocol, for the actions that the emulators lack.

Shapes: EC2 API reference, of each action and "Error codes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl
from xml.etree import ElementTree as ET

from fleetcast.local.aws_fakes.call import Answer, Call, Refused, page_of
from fleetcast.local.aws_fakes.capacity_blocks import capacity_block_offerings
from fleetcast.local.aws_fakes.spot_placement import SpotPlacement
from fleetcast.local.aws_fakes.spot_prices import spot_price_history

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fleetcast.local.aws_fakes.scenario import Scenario

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
REQUEST_ID = "00000000-0000-4000-8000-000000000000"


class Ec2:
    """The actions, each with what its answer calls the list that it holds."""

    def __init__(self) -> None:
        self._actions: dict[str, tuple[str, Callable[[Call, Scenario], list[dict[str, str]]]]] = {
            "DescribeCapacityBlockOfferings": (
                "capacityBlockOfferingSet",
                capacity_block_offerings,
            ),
            "DescribeSpotPriceHistory": ("spotPriceHistorySet", spot_price_history),
            "GetSpotPlacementScores": ("spotPlacementScoreSet", SpotPlacement().scores),
        }

    def answer(self, call: Call, scenario: Scenario) -> Answer:
        """Answer a call from the scenario."""
        failure = scenario.failure_of(call)
        if call.action not in self._actions or failure == "invalid_action":
            return error(
                "InvalidAction", f"The action {call.action} is not valid for this web service."
            )
        list_name, entries_of = self._actions[call.action]
        try:
            entries = [] if failure == "nothing" else entries_of(call, scenario)
        except Refused as refusal:
            return error(refusal.code, refusal.message)
        size = min(scenario.page_size, int(call.parameters.get("MaxResults") or scenario.page_size))
        page, token = page_of(entries, call, size=size, first_empty=failure == "empty_page")
        return _listing(call.action, list_name, page, token)


def decode(body: bytes, region: str, *, at_s: float) -> Call:
    """Decode a form body."""
    form = dict(parse_qsl(body.decode(), keep_blank_values=True))
    named = [value for name, value in form.items() if name.partition(".")[0] == "InstanceType"]
    return Call(
        action=form.get("Action", ""),
        region=region,
        parameters=form,
        instance_types=(*named, *_filter_values(form, "instance-type")),
        at_s=at_s,
    )


def error(code: str, message: str) -> Answer:
    """Answer with an error in EC2's form."""
    root = ET.Element("Response")
    entry = ET.SubElement(ET.SubElement(root, "Errors"), "Error")
    ET.SubElement(entry, "Code").text = code
    ET.SubElement(entry, "Message").text = message
    ET.SubElement(root, "RequestID").text = REQUEST_ID
    return _xml(403 if code == "UnauthorizedOperation" else 400, root)


def _listing(
    action: str, list_name: str, page: Sequence[Mapping[str, str]], token: str | None
) -> Answer:
    root = ET.Element(f"{action}Response", xmlns=NAMESPACE)
    ET.SubElement(root, "requestId").text = REQUEST_ID
    listed = ET.SubElement(root, list_name)
    for entry in page:
        item = ET.SubElement(listed, "item")
        for name, text in entry.items():
            ET.SubElement(item, name).text = text
    ET.SubElement(root, "nextToken").text = token or ""  # EC2 sends it empty on the last page
    return _xml(200, root)


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
