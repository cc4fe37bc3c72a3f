"""Calls that API Gateway refuses by itself: an EC2 client can read why."""

from typing import Any

import botocore.session
import pytest
from botocore.parsers import create_parser

Template = dict[str, Any]


def answers(template: Template) -> dict[str, dict[str, Any]]:
    """Return the properties of each of API Gateway's own answers, by its type."""
    return {
        resource["Properties"]["ResponseType"]: resource["Properties"]
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::ApiGateway::GatewayResponse"
    }


def read_by_botocore(answer: dict[str, Any], message: str) -> dict[str, Any]:
    (document,) = answer["ResponseTemplates"].values()
    filled = document.replace("$context.error.message", message)
    filled = filled.replace("$context.requestId", "request-1")
    response = {"status_code": 403, "headers": {}, "body": filled.encode()}
    model = botocore.session.get_session().get_service_model("ec2")
    output = model.operation_model("RunInstances").output_shape
    assert output is not None
    return dict(create_parser(model.protocol).parse(response, output))


@pytest.mark.parametrize(
    ("response_type", "code"),
    [
        ("ACCESS_DENIED", "UnauthorizedOperation"),
        ("INVALID_SIGNATURE", "SignatureDoesNotMatch"),
        ("EXPIRED_TOKEN", "RequestExpired"),
        ("MISSING_AUTHENTICATION_TOKEN", "MissingAuthenticationToken"),
        ("REQUEST_TOO_LARGE", "MalformedQueryString"),
        ("THROTTLED", "RequestLimitExceeded"),
        ("DEFAULT_4XX", "AuthFailure"),
        ("DEFAULT_5XX", "InternalError"),
    ],
)
def test_a_refusal_by_api_gateway_is_an_ec2_error_with_its_reason(
    template: Template, response_type: str, code: str
) -> None:
    # What a wrong signature is answered with quotes the request.
    reason = "The Canonical String should have been 'POST\n/\nAction=a&B=<c>'"
    answer = read_by_botocore(answers(template)[response_type], reason)
    assert answer["Error"] == {"Code": code, "Message": reason}
    assert answer["ResponseMetadata"]["RequestId"] == "request-1"


def test_a_throttled_client_is_told_so_with_the_status_that_makes_sdks_wait(
    template: Template,
) -> None:
    assert answers(template)["THROTTLED"]["StatusCode"] == "503"


def test_these_answers_are_part_of_the_deployment(template: Template) -> None:
    (deployment,) = (
        resource
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::ApiGateway::Deployment"
    )
    own = [
        name
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::ApiGateway::GatewayResponse"
    ]
    # What is made after the deployment has no effect until the next one.
    assert set(own) <= set(deployment["DependsOn"])
