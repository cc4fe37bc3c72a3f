"""The read API on loopback: the function's handler over tables in moto, behind real HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from fleetcast.instance_types import ec2_catalogue
from fleetcast.read_answers import LAUNCH_PATH, RESERVATION_ID
from lambdas.attribute_values import encode_item
from lambdas.fleet_table import FleetTable
from lambdas.read_api import handler
from lambdas.settings import ReadApiSettings, Region
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pytest
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from mypy_boto3_dynamodb import DynamoDBClient

NOW_S: Final = 1_800_000_000.0
ACCOUNT: Final = "123456789012"
SETTINGS: Final = ReadApiSettings(
    fleet_table=FLEET,
    region_scores_table=REGION_SCORES,
    regions=(
        Region(name="us-east-1", nats_url="tls://a:4222"),
        Region(name="eu-west-1", nats_url="tls://b:4222"),
    ),
    default_region="us-east-1",
)


@dataclasses.dataclass(frozen=True)
class _Invocation:
    aws_request_id: str = "59f2c4a4-0000-4000-8000-000000000000"


def reading(value: float | None, *, age_s: float = 30, **fields: object) -> dict[str, object]:
    """Return a signal as it stands in a row."""
    observed_at = None if value is None else NOW_S - age_s
    return {"value": value, "status": "ok", "observed_at": observed_at, "error": None} | fields


class ReadApi:
    """The function, its tables, and the requests that came over HTTP."""

    def __init__(self, dynamodb: DynamoDBClient) -> None:
        self.dynamodb = dynamodb
        self.fleet = FleetTable(dynamodb, FLEET)
        self.requests: list[tuple[str, Mapping[str, str]]] = []

    def put(
        self,
        region: str,
        score: float,
        *,
        instance_type: str = "*",
        missing: int = 0,
        age_s: float = 60,
        reasons: Sequence[str] = (),
        **signals: Mapping[str, object],
    ) -> None:
        """Write a row as a sweep does."""
        item = {
            "pk": f"TYPE#{instance_type}",
            "sk": f"REGION#{region}",
            "score": score,
            "missing_scored_signals": missing,
            "telemetry_status": ("complete", "partial", "unavailable")[missing],
            "signals": signals,
            "reasons": reasons,
            "computed_at": NOW_S - age_s,
            "sweep_id": "sweep-1",
            "expires_at": int(NOW_S) + 86_400,
        }
        self.dynamodb.put_item(TableName=REGION_SCORES, Item=encode_item(item))

    def get(self, target: str) -> tuple[int, Any]:
        """Call the function as API Gateway does for a GET of that path and query."""
        response = call(target)
        assert response["headers"] == {"Content-Type": "application/json"}
        return response["statusCode"], msgspec.json.decode(response["body"])


def call(target: str, *, account: str = ACCOUNT) -> dict[str, Any]:
    """Hand a GET over as a REST API does: with the query and what the path names decoded."""
    parts = urlsplit(target)
    resource, named = parts.path, None
    folder, _, last = parts.path.rpartition("/")
    if folder == LAUNCH_PATH.rpartition("/")[0]:
        resource, named = LAUNCH_PATH, {RESERVATION_ID: unquote(last)}
    values = parse_qs(parts.query, keep_blank_values=True)
    context: Any = _Invocation()
    checked: LambdaContext = context
    event = {
        "resource": resource,
        "path": parts.path,
        "httpMethod": "GET",
        "queryStringParameters": {name: texts[-1] for name, texts in values.items()} or None,
        "multiValueQueryStringParameters": values or None,
        "pathParameters": named,
        "requestContext": {
            "stage": "prod",
            "accountId": "999999999999",  # of the API
            "identity": {"accountId": account},
        },
        "body": None,
        "isBase64Encoded": False,
    }
    return handler.handle(event, checked)


@contextlib.contextmanager
def read_api(
    monkeypatch: pytest.MonkeyPatch, settings: ReadApiSettings = SETTINGS
) -> Iterator[ReadApi]:
    """Have the function ready, at NOW_S, with empty tables."""
    with tables(REGION_SCORES, FLEET) as dynamodb:
        services = handler.Services(
            settings=settings,
            instance_types=ec2_catalogue(),
            dynamodb=dynamodb,
            fleet=FleetTable(dynamodb, FLEET),
            now_s=lambda: NOW_S,
        )
        monkeypatch.setattr(handler, "at_cold_start", lambda: services)
        yield ReadApi(dynamodb)


@contextlib.contextmanager
def served(api: ReadApi) -> Iterator[str]:
    """Serve it on loopback under a stage; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.requests.append((self.path, dict(self.headers)))
            response = call(self.path.removeprefix("/prod"))
            body = response["body"].encode()
            self.send_response(response["statusCode"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Keep the test output free of access logs."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/prod/"
        finally:
            server.shutdown()
            thread.join()
