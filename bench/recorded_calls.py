"""AWS's answers to one process, kept in a folder for another one.

Stands between botocore and the network. What is answered is read from its file for each call, so
that the process that is measured holds no more of it than it would with a network.
"""

from __future__ import annotations

import hashlib
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import botocore.httpsession
import msgspec
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NETWORK: Final[Any] = botocore.httpsession.URLLib3Session


class _Recorded(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


# Nothing is remembered yet, and what is written is taken.
_EMPTY_TABLE: Final = _Recorded(200, {}, b"{}")


class _Body(BytesIO):
    """What an AWSResponse reads its content from."""

    def stream(self) -> Iterator[bytes]:
        yield self.read()


def record_calls(folder: Path) -> None:
    """Keep what this process is answered from now on; DynamoDB isn't asked, and holds nothing."""
    send = NETWORK.send

    def record(session: Any, request: Any) -> AWSResponse:  # noqa: ANN401 - botocore's
        if _is_for_dynamodb(request):
            answer, recorded = _answer(request, _EMPTY_TABLE), _EMPTY_TABLE
        else:
            answer = send(session, request)
            headers = dict(answer.headers.items())
            recorded = _Recorded(answer.status_code, headers, answer.content)
        _file_of(folder, request).write_bytes(msgspec.msgpack.encode(recorded))
        return answer

    NETWORK.send = record


def replay_calls(folder: Path, *, latency_s: float) -> Callable[[], int]:
    """Answer this process from the folder, each call that late; return what counts the calls."""
    calls: list[None] = []  # to append is atomic

    def replay(_: Any, request: Any) -> AWSResponse:  # noqa: ANN401 - botocore's
        calls.append(None)
        time.sleep(latency_s)
        recorded = _file_of(folder, request).read_bytes()
        return _answer(request, msgspec.msgpack.decode(recorded, type=_Recorded))

    NETWORK.send = replay
    return lambda: len(calls)


def _answer(request: Any, recorded: _Recorded) -> AWSResponse:  # noqa: ANN401 - botocore's
    headers = HTTPHeaders()
    for name, value in recorded.headers.items():
        headers[name] = value
    answer = AWSResponse(request.url, recorded.status, headers, _Body(recorded.body))
    _ = answer.content  # it is read while the connection is there
    return answer


def _file_of(folder: Path, request: Any) -> Path:  # noqa: ANN401 - botocore's
    asked = "\0".join(_what_is_asked(request))
    return folder / hashlib.sha256(asked.encode()).hexdigest()


def _what_is_asked(request: Any) -> tuple[str, ...]:  # noqa: ANN401 - botocore's
    """Return what makes two requests the same question: not their times and their ids."""
    authorization = _text(request.headers["Authorization"])
    region, service = authorization.partition("Credential=")[2].split("/")[2:4]
    target = _text(request.headers.get("X-Amz-Target", ""))
    body = _text(request.body or b"")
    if service in {"dynamodb", "monitoring"}:
        body = ""
    elif not target:
        pairs = sorted(body.split("&"))
        body = "&".join(pair for pair in pairs if "Time" not in pair and "Date" not in pair)
    return (region, service, target, body)


def _is_for_dynamodb(request: Any) -> bool:  # noqa: ANN401 - botocore's
    return _text(request.headers.get("X-Amz-Target", "")).startswith("DynamoDB")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
