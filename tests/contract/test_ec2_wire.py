"""What botocore really sends is understood, and what is answered botocore really understands."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcast import errors
from infra.ec2_model import MODEL_PATH
from lambdas.run_instances.ec2_protocol import decode_request, encode_error, encode_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.awsrequest import AWSPreparedRequest

ACTIONS: dict[str, Any] = json.loads(MODEL_PATH.read_text(encoding="utf-8"))["actions"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
REQUIRED: dict[str, dict[str, Any]] = {
    "DescribeInstanceTypes": {},
    "DescribeInstances": {},
    "GetConsoleOutput": {"InstanceId": "i-00000001"},
    "RebootInstances": {"InstanceIds": ["i-00000001"]},
    "RunInstances": {"MinCount": 1, "MaxCount": 1},
    "StartInstances": {"InstanceIds": ["i-00000001"]},
    "StopInstances": {"InstanceIds": ["i-00000001"]},
    "TerminateInstances": {"InstanceIds": ["i-00000001"]},
}

# What an XML document can carry as it is: a reader turns a carriage return into a line feed.
LEGAL_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
SCALARS: dict[str, st.SearchStrategy[object]] = {
    "string": LEGAL_TEXT,
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "timestamp": st.integers(0, 2**42).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
}


class Body:
    """What botocore reads a response from."""

    def __init__(self, document: str) -> None:
        self._document = document

    def stream(self) -> Iterator[bytes]:
        yield self._document.encode()


class Wire:
    """botocore's own EC2 client, whose connection ends in this test."""

    def __init__(self) -> None:
        session = botocore.session.Session()
        session.set_credentials("test", "test")
        # What a range doesn't allow is for the function to refuse: botocore sends it.
        once = Config(retries={"total_max_attempts": 1}, parameter_validation=False)
        self._client = session.create_client("ec2", region_name="us-east-1", config=once)
        events: Any = self._client.meta.events  # typed as if no handler ever answered
        events.register("before-send.ec2", self._respond)
        self._status, self._answer = 200, ""
        self.sent = ""

    def call(
        self, action: str, parameters: dict[str, Any], *, answer: str, status: int = 200
    ) -> dict[str, Any]:
        """Call an action, have it answered, and return what botocore makes of the answer."""
        self._status, self._answer = status, answer
        result: dict[str, Any] = getattr(self._client, xform_name(action))(**parameters)
        metadata = result.pop("ResponseMetadata")
        assert metadata["RequestId"] == "r"
        return result

    def _respond(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        assert isinstance(request.body, (str, bytes))
        self.sent = request.body if isinstance(request.body, str) else request.body.decode()
        return AWSResponse(request.url, self._status, HTTPHeaders(), Body(self._answer))


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire()


def values(shape: dict[str, Any], *, keyed_by_wire_name: bool) -> st.SearchStrategy[Any]:
    """Return values of a shape, by member names; nothing is empty, as the wire can't carry that."""
    if shape["type"] == "list":
        element = values(shape["member"], keyed_by_wire_name=keyed_by_wire_name)
        return st.lists(element, min_size=1, max_size=2)
    if shape["type"] != "structure":
        return SCALARS[shape["type"]]
    required = shape.get("required", ())
    mandatory: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for key, member in shape["members"].items():
        name = member["name"] if keyed_by_wire_name else key
        inner = values(member, keyed_by_wire_name=keyed_by_wire_name)
        (mandatory if key in required else optional)[name] = inner
    return st.fixed_dictionaries(mandatory, optional=optional).filter(bool)


@pytest.mark.parametrize("action", ACTIONS)
@given(data=st.data())
def test_what_botocore_sends_is_decoded_to_what_it_was_given(
    wire: Wire, action: str, data: st.DataObject
) -> None:
    given_parameters = data.draw(values(ACTIONS[action]["input"], keyed_by_wire_name=True))
    wire.call(action, given_parameters, answer=encode_response(action, {}, request_id="r"))
    request = decode_request(wire.sent)
    expected = dict(given_parameters)
    if action == "RunInstances":  # botocore encodes user data and invents a missing token
        if "UserData" in expected:
            expected["UserData"] = base64.b64encode(expected["UserData"].encode()).decode()
        expected.setdefault("ClientToken", request.parameters.get("ClientToken"))
    assert request.action == action
    assert request.parameters == expected


@pytest.mark.parametrize("action", ACTIONS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_answered_botocore_reads_back(wire: Wire, action: str, data: st.DataObject) -> None:
    result = data.draw(values(ACTIONS[action]["output"], keyed_by_wire_name=False))
    expected = dict(result)
    if action == "RebootInstances":  # what EC2 answers beyond botocore's model
        expected.pop("Return", None)
    if action == "GetConsoleOutput" and "Output" in result:  # botocore decodes it
        result["Output"] = base64.b64encode(result["Output"].encode()).decode()
    answer = encode_response(action, result, request_id="r")
    assert wire.call(action, REQUIRED[action], answer=answer) == expected


@pytest.mark.parametrize(
    "error",
    [
        errors.MissingParameter("ImageId"),
        errors.InvalidParameterValue("no \x00 <room> & time"),
        errors.DryRunOperation("Request would have succeeded, but DryRun flag is set."),
        errors.InsufficientInstanceCapacity("every region said no"),
        errors.ServiceUnavailable("us-east-1 can't be asked"),
    ],
    ids=lambda error: error.code,
)
def test_an_error_reaches_the_client_with_its_code_and_message(
    wire: Wire, error: errors.EC2Error
) -> None:
    answer = encode_error(error, request_id="r")
    with pytest.raises(ClientError) as raised:
        wire.call("DescribeInstances", {}, answer=answer, status=error.http_status)
    response = raised.value.response
    assert response["Error"]["Code"] == error.code
    assert response["Error"]["Message"] == error.message.replace("\x00", "\ufffd")
    assert response["ResponseMetadata"]["RequestId"] == "r"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == error.http_status
