"""The EC2 API function in this process, between API Gateway's events and botocore's parser."""

from __future__ import annotations

import atexit
import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import botocore.session
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config

from lambdas.run_instances import handler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aws_lambda_powertools.utilities.typing import LambdaContext
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.exceptions import ClientError
    from mypy_boto3_ec2 import EC2Client

ACCOUNT = "123456789012"
OWNER = "999999999999"  # of the API
_API_URL = "https://abc123.execute-api.us-east-1.amazonaws.com/prod"

atexit.register(handler.loop.close)  # Lambda just stops; a test run would be warned


@dataclass(frozen=True)
class Context:
    """What Lambda tells a function of one call."""

    aws_request_id: str = "59f2c4a4-0000-4000-8000-000000000000"
    remaining_ms: int = 28_000

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


def event(body: str | None, *, account: str | None = ACCOUNT, encoded: bool = False) -> Any:  # noqa: ANN401 - an event is JSON
    """Return a POST as a REST API hands it over."""
    if body is not None and encoded:
        body = base64.b64encode(body.encode()).decode()
    return {
        "resource": "/",
        "path": "/",
        "httpMethod": "POST",
        "headers": {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
        "multiValueHeaders": {},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {
            "accountId": OWNER,
            "apiId": "abc123",
            "httpMethod": "POST",
            "identity": {"accountId": account, "sourceIp": "127.0.0.1", "user": None},
            "path": "/prod/",
            "stage": "prod",
        },
        "body": body,
        "isBase64Encoded": encoded,
    }


def get_event(query: str) -> Any:  # noqa: ANN401 - an event is JSON
    """Return a GET as a REST API hands it over: with the query decoded."""
    values = parse_qs(query, keep_blank_values=True)
    return event(None) | {
        "httpMethod": "GET",
        "queryStringParameters": {name: texts[-1] for name, texts in values.items()} or None,
        "multiValueQueryStringParameters": values or None,
    }


def call(received: Any, context: Context | None = None) -> dict[str, Any]:  # noqa: ANN401 - an event is JSON
    """Call the function."""
    lambda_context: Any = context or Context()
    checked: LambdaContext = lambda_context
    return handler.handle(received, checked)


class _Body:
    def __init__(self, document: str) -> None:
        self._document = document

    def stream(self) -> Iterator[bytes]:
        yield self._document.encode()


def ec2_client(*, account: str = ACCOUNT, attempts: int = 1, path: str = "/") -> EC2Client:
    """Return botocore's own EC2 client, whose requests go to the function.

    path: of its endpoint, below the stage.
    """
    session = botocore.session.Session()
    session.set_credentials("test", "test")
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"})
    client: Any = session.create_client(
        "ec2", region_name="us-east-1", config=config, endpoint_url=f"{_API_URL}{path}"
    )

    def respond(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        body = request.body.decode() if isinstance(request.body, bytes) else request.body
        received = event(str(body), account=account) | _routed(request.url)
        answer = call(received)
        headers = HTTPHeaders.from_dict(answer["headers"])
        return AWSResponse(request.url, answer["statusCode"], headers, _Body(answer["body"]))

    client.meta.events.register_first("before-send.ec2", respond)
    checked: EC2Client = client
    return checked


def _routed(url: str) -> dict[str, Any]:
    """Say of a URL what a REST API says of it, whose paths may end with a slash or not."""
    path = url.removeprefix(_API_URL)
    region = re.fullmatch(r"/regions/([^/]+)/?", path)
    if region is None:
        assert path in {"", "/"}, f"the API has no {path}"
        return {"resource": "/", "path": path}
    return {
        "resource": "/regions/{region}",
        "path": path,
        "pathParameters": {"region": region[1]},
    }


def error_of(error: ClientError) -> tuple[str, str, int]:
    """Return the code, the message and the HTTP status of what a client was told."""
    answer = error.response
    return (
        answer["Error"]["Code"],
        answer["Error"]["Message"],
        answer["ResponseMetadata"]["HTTPStatusCode"],
    )
