from __future__ import annotations

from urllib.parse import urlencode
from xml.etree.ElementTree import Element, fromstring

import pytest

from fleetcast.errors import (
    EC2Error,
    InsufficientInstanceCapacity,
    InvalidAction,
    InvalidParameterValue,
    MalformedQueryString,
    MissingAction,
    MissingParameter,
    UnknownParameter,
)
from lambdas.run_instances.ec2_protocol import (
    MAX_BODY_BYTES,
    decode_request,
    encode_error,
    encode_response,
)

LAUNCH = {"Action": "RunInstances", "Version": "2016-11-15", "MinCount": "1", "MaxCount": "2"}
DESCRIBE = {"Action": "DescribeInstances"}
NAMESPACE = "{http://ec2.amazonaws.com/doc/2016-11-15/}"


def parsed(document: str) -> Element:
    return fromstring(document.encode())  # noqa: S314 - our own output


def test_parameters_are_typed_and_named_as_in_the_api_reference() -> None:
    request = decode_request(
        urlencode(
            LAUNCH
            | {
                "DryRun": "true",
                "Placement.AvailabilityZone": "us-east-1a",
                "TagSpecification.1.ResourceType": "instance",
                "TagSpecification.1.Tag.1.Key": "name",
                "TagSpecification.1.Tag.1.Value": "Zoë & co",
            }
        )
    )
    assert request.action == "RunInstances"
    assert request.parameters == {
        "MinCount": 1,
        "MaxCount": 2,
        "DryRun": True,
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "name", "Value": "Zoë & co"}]},
        ],
    }


def test_list_elements_are_ordered_by_number_and_gaps_close() -> None:
    request = decode_request(
        urlencode(DESCRIBE | {"InstanceId.10": "c", "InstanceId.9": "b", "InstanceId.1": "a"})
    )
    assert request.parameters == {"InstanceIds": ["a", "b", "c"]}


def test_the_signature_of_a_presigned_url_is_no_parameter() -> None:
    assert decode_request(urlencode(DESCRIBE | {"X-Amz-Signature": "abc"})).parameters == {}


@pytest.mark.parametrize(
    "name",
    [
        "Colour",
        "SubnetId",
        "NetworkInterface.1.SubnetId",
        "Placement.Tenancy",
        "Placement",
        "TagSpecification.1",
        "TagSpecification.1.Tag.1.Key.Deeper",
        "TagSpecification.one.ResourceType",
        "TagSpecification.0.ResourceType",
        "TagSpecification.01.ResourceType",
        "TagSpecification.1001.ResourceType",
        "TagSpecification.999999999.ResourceType",
        "MinCount.1",
        "imageId",
        "X" + ".a" * 100,
        ".",
        "",
    ],
)
def test_an_unknown_parameter_is_refused_by_the_name_that_was_sent(name: str) -> None:
    with pytest.raises(UnknownParameter) as refusal:
        decode_request(urlencode(LAUNCH | {name: "1"}))
    assert refusal.value.parameter == name


@pytest.mark.parametrize(
    "text", ["", " ", "1.5", "1e3", "0x1", "1_000", "one", "1 ", "٣", "2147483648", "9" * 30]
)
def test_what_is_no_integer_of_32_bits_is_an_invalid_value(text: str) -> None:
    with pytest.raises(InvalidParameterValue, match="MinCount"):
        decode_request(urlencode(LAUNCH | {"MinCount": text}))


@pytest.mark.parametrize("text", ["-2147483648", "-1", "0", "2147483647"])
def test_integers_keep_their_sign_and_reach_their_bounds(text: str) -> None:
    parameters = decode_request(urlencode(LAUNCH | {"MinCount": text})).parameters
    assert parameters["MinCount"] == int(text)


@pytest.mark.parametrize("text", ["", "1", "yes", "truee"])
def test_what_is_no_boolean_is_an_invalid_value(text: str) -> None:
    with pytest.raises(InvalidParameterValue, match="DryRun"):
        decode_request(urlencode(LAUNCH | {"DryRun": text}))


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("Action=RunInstances&MaxCount=1", "MinCount"),
        ("Action=RunInstances&MinCount=1", "MaxCount"),
        ("Action=TerminateInstances&DryRun=false", "InstanceId"),
    ],
)
def test_a_missing_required_parameter_is_named(body: str, missing: str) -> None:
    with pytest.raises(MissingParameter) as refusal:
        decode_request(body)
    assert refusal.value.parameter == missing


@pytest.mark.parametrize("body", ["", "Version=2016-11-15", "Action=", "action=RunInstances"])
def test_a_request_without_an_action_is_missing_it(body: str) -> None:
    with pytest.raises(MissingAction):
        decode_request(body)


@pytest.mark.parametrize("action", ["LaunchRockets", "runinstances", "StopInstances.", "__init__"])
def test_an_action_that_is_not_served_is_invalid(action: str) -> None:
    with pytest.raises(InvalidAction, match=f"The action {action} is not valid for this web"):
        decode_request(urlencode({"Action": action}))


@pytest.mark.parametrize(
    "body",
    [
        "hello",
        '{"Action": "RunInstances"}',
        "\x00\x01\x02",
        "Action=DescribeInstances&NextToken=%ff%fe",
        "Action=DescribeInstances&NextToken=\ud800",
        "Action=DescribeInstances&Action=RunInstances",
        "Action=DescribeInstances&InstanceId.1=a&InstanceId.1=b",
        "Action=DescribeInstances&" + "a" * 256 + "=1",
        "&".join(f"InstanceId.{number}=i" for number in range(10_001)),
        "Action=" + "a" * MAX_BODY_BYTES,
    ],
)
def test_what_no_client_could_have_sent_is_malformed(body: str) -> None:
    with pytest.raises(MalformedQueryString):
        decode_request(body)


def test_a_huge_unknown_action_is_not_echoed_whole() -> None:
    with pytest.raises(InvalidAction) as refusal:
        decode_request("Action=" + "a" * 100_000)
    assert len(refusal.value.message) < 200


def test_user_data_is_in_no_repr_of_a_request() -> None:
    assert "c2VjcmV0" not in repr(decode_request(urlencode(LAUNCH | {"UserData": "c2VjcmV0"})))


def test_an_answer_is_rooted_in_ec2s_namespace_and_carries_the_request_id() -> None:
    root = parsed(encode_response("DescribeInstances", {"Reservations": []}, request_id="r-1"))
    assert root.tag == f"{NAMESPACE}DescribeInstancesResponse"
    assert root.findtext(f"{NAMESPACE}requestId") == "r-1"
    assert root.find(f"{NAMESPACE}reservationSet") is not None


def test_what_is_none_in_a_result_is_left_out() -> None:
    assert "nextToken" not in encode_response(
        "DescribeInstances", {"NextToken": None}, request_id="r"
    )


def test_a_result_that_does_not_fit_the_model_is_a_bug_that_shows() -> None:
    with pytest.raises(KeyError):
        encode_response("DescribeInstances", {"Colour": "red"}, request_id="r")
    with pytest.raises(TypeError):
        encode_response("DescribeInstances", {"NextToken": 5}, request_id="r")


@pytest.mark.parametrize("text", ["\x00", "\x1b[0m", "\ud800", "\ufffe", "]]>", "<&>\"'"])
def test_no_text_breaks_a_document(text: str) -> None:
    answer = encode_response("DescribeInstances", {"NextToken": text}, request_id="r")
    parsed(answer)
    error = encode_error(InvalidParameterValue(text), request_id="r")
    parsed(error)


@pytest.mark.parametrize(
    "error",
    [InvalidAction("no <such> action"), InsufficientInstanceCapacity("nobody has room")],
)
def test_an_error_says_code_message_and_request_id(error: EC2Error) -> None:
    root = parsed(encode_error(error, request_id="r-2"))
    assert root.tag == "Response"
    assert root.findtext("Errors/Error/Code") == error.code
    assert root.findtext("Errors/Error/Message") == error.message
    assert root.findtext("RequestID") == "r-2"
