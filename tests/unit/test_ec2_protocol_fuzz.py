"""Whatever a client sends is either a request or an EC2 error."""

from __future__ import annotations

from urllib.parse import urlencode

from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import EC2Error
from lambdas.run_instances.ec2_protocol import decode_request, encode_error

PARTS = st.sampled_from(
    [
        *("MinCount", "MaxCount", "TagSpecification", "Tag", "Key", "Value", "ResourceType"),
        *("Filter", "Name", "InstanceId", "Placement", "AvailabilityZone", "DryRun", "Monitoring"),
        *("Enabled", "0", "1", "2", "1000", "999999999", "-1", ""),
    ]
)
NAMES = st.lists(PARTS, min_size=1, max_size=6).map(".".join)
TEXTS = st.one_of(st.sampled_from(["1", "true", "instance", ""]), st.text(max_size=20))
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=200)


def decode_or_refuse(body: str) -> None:
    try:
        decode_request(body)
    except EC2Error as error:
        encode_error(error, request_id="r").encode()


@given(body=ANY_TEXT)
def test_any_text_is_decoded_or_refused_as_ec2_would(body: str) -> None:
    decode_or_refuse(body)


@given(text=ANY_TEXT)
def test_any_text_after_an_action_is_decoded_or_refused(text: str) -> None:
    decode_or_refuse(f"Action=RunInstances&MinCount=1&MaxCount=1&{text}")


@given(
    action=st.sampled_from(["RunInstances", "DescribeInstances", "TerminateInstances"]),
    fields=st.dictionaries(NAMES, TEXTS.filter(lambda text: text.isprintable()), max_size=12),
)
def test_any_arrangement_of_known_names_is_decoded_or_refused(
    action: str, fields: dict[str, str]
) -> None:
    decode_or_refuse(urlencode({"Action": action, **fields}))


@given(data=st.data(), ids=st.dictionaries(st.integers(1, 1000), st.text("i-0123456789abcdef")))
def test_the_order_of_fields_never_matters(data: st.DataObject, ids: dict[int, str]) -> None:
    fields = [("Action", "DescribeInstances")]
    fields += [(f"InstanceId.{number}", text) for number, text in ids.items()]
    reordered = data.draw(st.permutations(fields))
    assert decode_request(urlencode(reordered)) == decode_request(urlencode(fields))
