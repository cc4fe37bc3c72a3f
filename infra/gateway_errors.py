"""What API Gateway answers by itself, in the form that EC2 clients read.

A call that it refuses, throttles or can't pass on never reaches the function. Its own JSON would
end in a parser error in every EC2 client, which then neither shows the reason nor retries. These
answers are an API's, not a path's: below /v1, where the function answers with JSON, they are XML
too, and fleetcast.cli.read_api reads both.
"""

from typing import NamedTuple

from aws_cdk import aws_apigateway as apigateway

from fleetcast.errors import InternalError, MalformedQueryString

# CDATA, as these templates have no function that escapes: a signature's error quotes the request.
_DOCUMENT = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    "<Response><Errors><Error><Code>{code}</Code>"
    "<Message><![CDATA[$context.error.message]]></Message></Error></Errors>"
    "<RequestID>$context.requestId</RequestID></Response>"
)
# The template that is taken for clients that ask for no type, as EC2's do.
_CONTENT_TYPE = "application/json"


class _Answer(NamedTuple):
    """An EC2 error code, and the HTTP status if API Gateway's own would mislead clients."""

    code: str
    status: str | None = None


# Source of the codes: EC2 API reference, error codes.
_ANSWERS = {
    "ACCESS_DENIED": _Answer("UnauthorizedOperation"),
    "INVALID_SIGNATURE": _Answer("SignatureDoesNotMatch"),
    "EXPIRED_TOKEN": _Answer("RequestExpired"),
    "MISSING_AUTHENTICATION_TOKEN": _Answer("MissingAuthenticationToken"),
    "REQUEST_TOO_LARGE": _Answer(MalformedQueryString.code),
    "THROTTLED": _Answer("RequestLimitExceeded", status="503"),  # SDKs slow down for this pair
    "DEFAULT_4XX": _Answer("AuthFailure"),
    "DEFAULT_5XX": _Answer(InternalError.code),
}


def answer_as_ec2_does(api: apigateway.RestApi) -> None:
    """Have an API's own errors written as EC2 writes its errors."""
    for response_type, answer in _ANSWERS.items():
        api.add_gateway_response(
            f"Answer{response_type.title().replace('_', '')}",
            type=apigateway.ResponseType.of(response_type),
            status_code=answer.status,
            templates={_CONTENT_TYPE: _DOCUMENT.format(code=answer.code)},
        )
