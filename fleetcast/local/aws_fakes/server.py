"""The HTTP server of the fakes: a thread a connection, on loopback only."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from fleetcast.local.aws_fakes import ec2, pricing
from fleetcast.local.aws_fakes.call import Answer, Call

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fleetcast.local.aws_fakes.scenario import Scenario

# Signature version 4: Credential=KEY/DATE/REGION/SERVICE/aws4_request
CREDENTIAL_SCOPE = re.compile(r"Credential=[^/]+/\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/")
THROTTLED = Answer(status=503, content_type="text/plain", body=b"Rate exceeded; slow down")


class AwsFakes:
    """A running server; a context manager.

    scenario: what to answer, asked anew for each call, so that it may change meanwhile.
    clock_s: epoch seconds; what moves, moves by it.
    """

    def __init__(
        self, scenario: Callable[[], Scenario], *, clock_s: Callable[[], float] = time.time
    ) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()  # by action and region
        self._scenario = scenario
        self._clock_s = clock_s
        self._ec2 = ec2.Ec2()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        """Where it answers, e.g. http://127.0.0.1:41234."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, *, authorization: str, target: str, body: bytes) -> Answer | None:
        """Answer one request; None means: hang up without a word. Called from many threads."""
        scope = CREDENTIAL_SCOPE.search(authorization)
        if scope is None:
            return ec2.error("AuthFailure", "The request is not signed.")
        region = scope["region"]
        now_s = self._clock_s()
        if scope["service"] == "pricing":
            call = pricing.decode(target, body, region, at_s=now_s)
            return self._answer(call, pricing.answer, pricing.error)
        return self._answer(ec2.decode(body, region, at_s=now_s), self._ec2.answer, ec2.error)

    def _answer(
        self,
        call: Call,
        regular: Callable[[Call, Scenario], Answer],
        error: Callable[[str, str], Answer],
    ) -> Answer | None:
        with self._lock:
            self.calls[call.action, call.region] += 1
        scenario = self._scenario()
        self._stopping.wait(scenario.latency_s.get(call.action, 0.0))
        match scenario.failure_of(call):
            case "timeout":
                self._stopping.wait()
                return None
            case "throttled":
                return THROTTLED
            case "access_denied":
                code = "UnauthorizedOperation" if error is ec2.error else "AccessDeniedException"
                return error(code, f"You are not authorized to perform {call.action}.")
            case _:
                return regular(call, scenario)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # connections that are kept alive would hold it up
    request_queue_size = 128

    def __init__(self, fakes: AwsFakes) -> None:
        self.fakes = fakes
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes; a delayed ACK costs 40 ms

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.server.fakes.answer(
            authorization=self.headers.get("Authorization", ""),
            target=self.headers.get("X-Amz-Target", ""),
            body=body,
        )
        if answer is None:
            self.close_connection = True
            return
        try:
            self._send(answer)
        except ConnectionError:  # the client has given up, as it is made to by latency
            self.close_connection = True

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing: the calls are counted."""
