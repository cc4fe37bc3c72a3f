"""How a sweep's calls reach AWS: over TLS, with a server to talk to."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lambdas.score_regions import handler
from lambdas.score_regions.clients import new_session
from lambdas.score_regions.connections import Connections
from lambdas.settings import Region, ScoreRegionsSettings, encode_settings
from tests.tls_endpoint import HOST, respond, served, write_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

READ_TIMEOUT_S = 0.2
HELD_S = 2.0
ONCE = Config(
    connect_timeout=1,
    read_timeout=READ_TIMEOUT_S,
    retries={"mode": "standard", "total_max_attempts": 1},
)


class Endpoint:
    """A server over TLS that answers everything by `answer`."""

    def __init__(self, folder: Path) -> None:
        self.certificate, key = write_certificate(folder)
        self.files = (self.certificate, key)
        self.port = 0
        self.requests: list[tuple[int, str]] = []
        self.released = threading.Event()
        self.answer: Callable[[BaseHTTPRequestHandler], object] = respond

    def receive(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.client_address[1], str(request.headers["X-Amz-Target"])))
        self.answer(request)

    def url(self, host: str = HOST) -> str:
        return f"https://{host}:{self.port}"


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CA_BUNDLE": str(endpoint.certificate),
    }.items():
        monkeypatch.setenv(name, value)
    with served(endpoint.files, endpoint.receive) as endpoint.port:
        yield endpoint
        endpoint.released.set()


def dynamodb(url: str, *, carried: bool = True) -> Any:  # noqa: ANN401 - a client
    client = new_session().client("dynamodb", endpoint_url=url, config=ONCE)
    if carried:
        Connections().carry(client)
    return client


def test_certificates_are_read_once_for_all_clients(endpoint: Endpoint) -> None:
    connections = Connections()
    endpoint.certificate.unlink()

    session = new_session()
    for _ in range(2):
        client = session.client("dynamodb", endpoint_url=endpoint.url(), config=ONCE)
        connections.carry(client)
        assert client.list_tables()["ResponseMetadata"]["HTTPStatusCode"] == 200

    assert len(endpoint.requests) == 2
    assert len({port for port, _ in endpoint.requests}) == 1  # over one connection


def test_an_error_of_the_service_is_told_as_such(endpoint: Endpoint) -> None:
    endpoint.answer = lambda request: respond(
        request, b'{"__type": "ResourceNotFoundException", "message": "no such table"}', 400
    )

    with pytest.raises(ClientError, match="no such table"):
        dynamodb(endpoint.url()).list_tables()


# --- what goes wrong is what botocore would make of it ---------------------------------------


def raised_by(url: str, *, carried: bool) -> tuple[type[BaseException], str]:
    with pytest.raises(BotoCoreError) as caught:
        dynamodb(url, carried=carried).list_tables()
    return caught.type, str(caught.value).split(" (_ssl.c")[0]


def test_a_certificate_that_is_not_trusted_is_refused(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE")  # the public ones

    ours, botocores = (raised_by(endpoint.url(), carried=carried) for carried in (True, False))

    assert ours == botocores
    assert "certificate verify failed" in ours[1]
    assert endpoint.requests == []


def test_a_certificate_of_another_host_is_refused(endpoint: Endpoint) -> None:
    ours, botocores = (
        raised_by(endpoint.url("127.0.0.1"), carried=carried) for carried in (True, False)
    )

    assert ours == botocores
    assert "doesn't match" in ours[1]
    assert endpoint.requests == []


def test_an_answer_that_is_late_is_a_read_timeout(endpoint: Endpoint) -> None:
    endpoint.answer = lambda _request: endpoint.released.wait(HELD_S)

    began_s = time.monotonic()
    ours, botocores = (raised_by(endpoint.url(), carried=carried) for carried in (True, False))

    assert ours == botocores
    assert "Read timeout on endpoint URL" in ours[1]
    assert time.monotonic() - began_s < HELD_S


def test_a_connection_that_is_closed_is_told_as_such(endpoint: Endpoint) -> None:
    endpoint.answer = lambda request: request.connection.shutdown(socket.SHUT_RDWR)

    ours, botocores = (raised_by(endpoint.url(), carried=carried) for carried in (True, False))

    assert ours == botocores
    assert "Connection was closed" in ours[1]


@pytest.mark.usefixtures("endpoint")
def test_an_endpoint_that_is_not_there_is_told_as_such() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"https://{HOST}:{taken.getsockname()[1]}"
        ours, botocores = (raised_by(url, carried=carried) for carried in (True, False))

    assert ours == botocores
    assert "Could not connect to the endpoint URL" in ours[1]


def test_calls_through_a_proxy_are_left_to_botocore(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{taken.getsockname()[1]}")

        kind, _ = raised_by(endpoint.url(), carried=True)

    assert kind.__name__ == "ProxyConnectionError"
    assert endpoint.requests == []


# --- the function ----------------------------------------------------------------------------


def test_the_function_reads_its_certificates_at_its_cold_start(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ScoreRegionsSettings(
        region_scores_table="RegionScores",
        regions=(Region(name="us-east-1", nats_url="tls://a:4222"),),
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url())
    for name, value in encode_settings(settings).items():
        monkeypatch.setenv(name, value)
    handler.at_cold_start.cache_clear()

    services = handler.at_cold_start()
    handler.at_cold_start.cache_clear()
    endpoint.certificate.unlink()

    assert services.table.read_memory("us-east-1") is None
    endpoint.answer = lambda request: respond(request, b'{"Attributes": {}}')
    services.clients.sqs("us-east-1").get_queue_attributes(QueueUrl=endpoint.url())
    assert [target for _, target in endpoint.requests] == [
        "DynamoDB_20120810.GetItem",
        "AmazonSQS.GetQueueAttributes",
    ]
