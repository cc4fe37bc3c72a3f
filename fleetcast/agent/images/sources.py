"""Opens what a URL stands for, https by urllib3, s3 by botocore; and files of the node. Blocking.

Both libraries are imported when they are first used: an agent that needs none keeps its memory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

from fleetcast.agent.images.urls import shown_url
from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES: Final = 1 << 20
_CONNECT_WITHIN_S: Final = 10
_READ_WITHIN_S: Final = 30
_MAX_REDIRECTS: Final = 5
# A server that sends a byte now and then would hold up all other fetches of the node for ever.
_LEAST_BYTES_A_S: Final = 10_000
_LOOK_EVERY_S: Final = 60.0


class FetchFailed(FleetcastError):
    """A URL or a file could not be read. may_pass: another try may do better."""

    def __init__(self, source: str, why: str, *, may_pass: bool) -> None:
        self.may_pass = may_pass
        super().__init__(f"{shown_url(source)}: {why}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What is being read. length: in bytes; None: its server doesn't say."""

    length: int | None
    chunks: Iterator[bytes]


def read_small(url: str, *, max_bytes: int) -> bytes:
    """Return what a URL stands for. Raises FetchFailed, also if it is larger than max_bytes."""
    content = b""
    with opened(url) as source:
        for chunk in source.chunks:
            content += chunk
            if len(content) > max_bytes:
                raise FetchFailed(url, f"is larger than {max_bytes} bytes", may_pass=False)
    return content


@contextlib.contextmanager
def opened(source: str) -> Iterator[Source]:
    """Open a URL that `check_url` takes, or an absolute path. Reading raises FetchFailed too."""
    if source.startswith("/"):
        opening = _opened_file(source)
    elif source.startswith("s3:"):
        opening = _opened_s3(source)
    else:
        opening = _opened_https(source)
    with opening as content:
        yield content


@contextlib.contextmanager
def _opened_file(path: str) -> Iterator[Source]:
    def chunks() -> Iterator[bytes]:
        while True:
            # Only reading: what fails while a chunk is being written is not this file's affair.
            try:
                chunk = file.read(_CHUNK_BYTES)
            except OSError as problem:
                raise FetchFailed(path, str(problem.strerror), may_pass=False) from problem
            if not chunk:
                return
            yield chunk

    try:
        # Who opens a pipe that nobody writes to waits for ever.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise FetchFailed(path, "is no file with an image", may_pass=False)
        file = Path(path).open("rb")  # noqa: SIM115 - closed below, not by an error of opening it
        length = os.fstat(file.fileno()).st_size
    except OSError as problem:
        raise FetchFailed(path, str(problem.strerror), may_pass=False) from problem
    with file:
        yield Source(length=length, chunks=chunks())


@contextlib.contextmanager
def _opened_https(url: str) -> Iterator[Source]:
    import urllib3  # noqa: PLC0415 - see the module's docstring

    timeout = urllib3.Timeout(connect=_CONNECT_WITHIN_S, read=_READ_WITHIN_S)
    with urllib3.PoolManager(timeout=timeout, retries=False) as pool:
        try:
            response = _https_response(pool, url)
            with contextlib.closing(response):
                length = response.headers.get("Content-Length", "")
                yield Source(
                    length=int(length) if length.isdecimal() else None,
                    chunks=_while_enough_comes(url, _parts(response)),
                )
        except urllib3.exceptions.HTTPError as problem:
            is_lasting = isinstance(problem, urllib3.exceptions.SSLError)
            raise FetchFailed(url, str(problem), may_pass=not is_lasting) from problem


def _parts(response: Any) -> Iterator[bytes]:  # noqa: ANN401 - urllib3's, imported late
    """Give out what has come as soon as it has."""
    while part := response.read1(_CHUNK_BYTES, decode_content=False):
        yield part


def _while_enough_comes(source: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Pass on what comes. Raises FetchFailed when hardly anything does."""
    began_s, came_bytes = time.monotonic(), 0
    for chunk in chunks:
        came_bytes += len(chunk)
        took_s = time.monotonic() - began_s
        if took_s >= _LOOK_EVERY_S:
            if came_bytes < took_s * _LEAST_BYTES_A_S:
                why = f"sends less than {_LEAST_BYTES_A_S // 1000} kB a second"
                raise FetchFailed(source, why, may_pass=True)
            began_s, came_bytes = time.monotonic(), 0
        yield chunk


def _https_response(pool: Any, url: str) -> Any:  # noqa: ANN401 - urllib3's, imported late
    at = url
    for _ in range(_MAX_REDIRECTS + 1):
        response = pool.request(
            "GET",
            at,
            headers={"Accept-Encoding": "identity"},
            preload_content=False,
            redirect=False,
        )
        location = response.get_redirect_location()
        if not location:
            break
        response.close()
        at = urljoin(at, location)
        if urlsplit(at).scheme != "https":
            raise FetchFailed(url, f"leads to {shown_url(at)}, no https", may_pass=False)
    else:
        raise FetchFailed(url, f"leads on more than {_MAX_REDIRECTS} times", may_pass=False)
    if response.status != HTTPStatus.OK:
        response.close()
        raise FetchFailed(
            url, f"HTTP status {response.status}", may_pass=_status_may_pass(response.status)
        )
    return response


@contextlib.contextmanager
def _opened_s3(url: str) -> Iterator[Source]:
    import botocore.config  # noqa: PLC0415 - see the module's docstring
    import botocore.exceptions  # noqa: PLC0415
    import botocore.session  # noqa: PLC0415

    parts = urlsplit(url)
    try:
        session = botocore.session.get_session()
        config = botocore.config.Config(
            connect_timeout=_CONNECT_WITHIN_S,
            read_timeout=_READ_WITHIN_S,
            # A node without credentials still reads what is public.
            signature_version=None if session.get_credentials() else botocore.UNSIGNED,
        )
        region = session.get_config_variable("region") or "us-east-1"
        # botocore's own stubs know no services.
        client: Any = session.create_client("s3", region_name=region, config=config)
        with contextlib.closing(client):
            answer = client.get_object(Bucket=parts.netloc, Key=parts.path.removeprefix("/"))
            with contextlib.closing(answer["Body"]) as body:
                yield Source(length=answer["ContentLength"], chunks=body.iter_chunks(_CHUNK_BYTES))
    except botocore.exceptions.ClientError as problem:
        status = problem.response["ResponseMetadata"]["HTTPStatusCode"]
        raise FetchFailed(url, str(problem), may_pass=_status_may_pass(status)) from problem
    except botocore.exceptions.BotoCoreError as problem:
        raise FetchFailed(url, str(problem), may_pass=True) from problem


def _status_may_pass(status: int) -> bool:
    return (
        status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
        or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )
