"""Images: fetched once, checked, kept within bounds, and never another content than promised."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import msgspec
import pytest
from moto import mock_aws

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.images import sources
from fleetcast.agent.images.cache import ImageCache
from fleetcast.agent.images.store import ImageStore
from tests.eventually import eventually
from tests.image_server import ImageServer, an_image, image_server
from tests.tls_endpoint import HOST, served, write_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.server import BaseHTTPRequestHandler

    from fleetcast.agent.images.catalogue import Image

_CONTENT: Final = bytes(range(256)) * 1024
_ROOMY: Final = 2**30
# As all files there, it says that it has 4096 bytes.
_SHORT_FILE: Final = Path("/sys/devices/system/cpu/possible")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    with image_server(tmp_path, monkeypatch) as running:
        yield running


def _store(tmp_path: Path, *, max_bytes: int = _ROOMY) -> ImageStore:
    """Return a store as a new agent makes it."""
    return ImageStore(ImageCache(tmp_path / "images", max_bytes=max_bytes), before_next_try_s=0)


def _cached(tmp_path: Path) -> set[str]:
    return _names(tmp_path / "images") - {"lock"}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _refused(store: ImageStore, image: Image, at: Path) -> str:
    with pytest.raises(BootFailed) as caught:
        await store.link(image, at)
    assert at.name not in _names(at.parent)
    return str(caught.value)


async def test_guests_get_what_was_fetched_and_it_is_fetched_once(
    tmp_path: Path, server: ImageServer
) -> None:
    image = server.image(_CONTENT)
    store = _store(tmp_path)
    first = await store.link(image, tmp_path / "a")
    second = await _store(tmp_path).link(image, tmp_path / "b")
    assert first.virtual_size_bytes == len(_CONTENT)
    assert second.path.read_bytes() == _CONTENT
    assert server.asked["/image"] == 1
    assert first.path.samefile(second.path)


async def test_launches_side_by_side_in_two_agents_fetch_once(
    tmp_path: Path, server: ImageServer
) -> None:
    server.may_end.clear()
    image = server.image(_CONTENT)
    stores = _store(tmp_path), _store(tmp_path)
    links = [
        asyncio.create_task(stores[number % 2].link(image, tmp_path / f"guest-{number}"))
        for number in range(10)
    ]
    await eventually(lambda: asyncio.sleep(0, server.asked["/image"]))
    server.may_end.set()
    for local in await asyncio.gather(*links):
        assert local.path.read_bytes() == _CONTENT
    assert server.asked["/image"] == 1


async def test_who_gives_up_leaves_the_fetch_to_the_others(
    tmp_path: Path, server: ImageServer
) -> None:
    server.may_end.clear()
    image = server.image(_CONTENT)
    store = _store(tmp_path)
    one, other = (asyncio.create_task(store.link(image, tmp_path / name)) for name in "ab")
    await eventually(lambda: asyncio.sleep(0, server.asked["/image"]))
    one.cancel()
    await asyncio.wait([one])
    server.may_end.set()
    assert (await other).path.read_bytes() == _CONTENT
    assert server.asked["/image"] == 1


async def test_a_server_that_sends_hardly_anything_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_LOOK_EVERY_S", 0.1)

    def send_slowly(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(_CONTENT)))
        request.end_headers()
        with contextlib.suppress(OSError):  # it has been given up
            for byte in _CONTENT[:2_000]:
                request.wfile.write(bytes([byte]))
                time.sleep(0.02)

    with _served(tmp_path, monkeypatch, send_slowly) as image:
        refused = _refused(_store(tmp_path), image, tmp_path / "a")
        assert "sends less than" in await asyncio.wait_for(refused, timeout=15)
    assert _cached(tmp_path) == set()


async def test_an_image_that_comes_in_chunks_is_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_chunks(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for chunk in (_CONTENT[:100_000], _CONTENT[100_000:], b""):
            request.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    with _served(tmp_path, monkeypatch, send_chunks) as image:
        local = await _store(tmp_path).link(image, tmp_path / "a")
    assert local.path.read_bytes() == _CONTENT


@contextlib.contextmanager
def _served(
    folder: Path,
    environment: pytest.MonkeyPatch,
    answer: Callable[[BaseHTTPRequestHandler], None],
) -> Iterator[Image]:
    """Serve an image in a way of its own."""
    certificate = write_certificate(folder)
    environment.setenv("SSL_CERT_FILE", str(certificate[0]))
    with served(certificate, answer) as port:
        yield an_image(_CONTENT, url=f"https://{HOST}:{port}/image")


async def test_a_wrong_content_names_both_checksums_and_is_fetched_anew(
    tmp_path: Path, server: ImageServer
) -> None:
    image = server.image(_CONTENT)
    server.files["/image"] = b"other content"
    store = _store(tmp_path)
    why = await _refused(store, image, tmp_path / "a")
    assert image.sha256 in why
    assert _name(b"other content") in why
    assert _cached(tmp_path) == set()
    server.files["/image"] = _CONTENT
    assert (await store.link(image, tmp_path / "a")).path.read_bytes() == _CONTENT


async def test_a_server_that_fails_for_a_moment_is_asked_again(
    tmp_path: Path, server: ImageServer
) -> None:
    image = server.image(_CONTENT)
    server.statuses["/image"] = [503, 500]
    assert (await _store(tmp_path).link(image, tmp_path / "a")).path.read_bytes() == _CONTENT
    assert server.asked["/image"] == 3


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (503, 3)])
async def test_a_server_that_refuses_is_told(
    tmp_path: Path, server: ImageServer, status: int, times: int
) -> None:
    image = server.image(_CONTENT, url=server.url("/image?signature=s3cret"))
    server.statuses["/image"] = [status] * 5
    why = await _refused(_store(tmp_path), image, tmp_path / "a")
    assert f"HTTP status {status}" in why
    assert "s3cret" not in why
    assert server.asked["/image"] == times
    assert _cached(tmp_path) == set()


async def test_a_server_that_is_not_trusted_is_told(
    tmp_path: Path, server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = server.image(_CONTENT)
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    assert "certificate" in (await _refused(_store(tmp_path), image, tmp_path / "a"))


async def test_redirects_are_followed_to_https_only(tmp_path: Path, server: ImageServer) -> None:
    image = server.image(_CONTENT)
    server.redirects["/image"] = server.url("/there")
    server.files["/there"] = _CONTENT
    store = _store(tmp_path)
    assert (await store.link(image, tmp_path / "a")).path.read_bytes() == _CONTENT
    server.redirects["/image"] = f"http://localhost:{server.port}/there?s3cret"
    other = server.image(b"other")
    why = await _refused(store, other, tmp_path / "b")
    assert "no https" in why
    assert "s3cret" not in why
    server.redirects["/image"] = server.url("/image")
    assert "leads on more than" in await _refused(store, other, tmp_path / "b")


async def test_what_no_guest_uses_goes_for_what_is_fetched(
    tmp_path: Path, server: ImageServer
) -> None:
    contents = [bytes([number]) * 1000 for number in range(4)]
    store = _store(tmp_path, max_bytes=3000)
    for number, content in enumerate(contents[:3]):
        await store.link(server.image(content), tmp_path / f"guest-{number}")
        os.utime(tmp_path / f"guest-{number}", (number, number))
    for number in (1, 2):
        (tmp_path / f"guest-{number}").unlink()
    await store.link(server.image(contents[3]), tmp_path / "guest-3")
    # The oldest is in use, the second was used before the third.
    assert _cached(tmp_path) == {_name(contents[at]) for at in (0, 2, 3)}
    assert (tmp_path / "guest-0").read_bytes() == contents[0]


async def test_an_image_that_does_not_fit_beside_those_in_use_is_told(
    tmp_path: Path, server: ImageServer
) -> None:
    store = _store(tmp_path, max_bytes=1500)
    await store.link(server.image(b"a" * 1000), tmp_path / "a")
    why = await _refused(store, server.image(b"b" * 1000), tmp_path / "b")
    assert "that no guest uses" in why
    assert _cached(tmp_path) == {_name(b"a" * 1000)}


async def test_what_an_agent_left_unfinished_is_removed_by_the_next(
    tmp_path: Path, server: ImageServer
) -> None:
    server.may_end.clear()
    image = server.image(_CONTENT)
    agent = _agent_process(tmp_path, image)
    await eventually(lambda: asyncio.sleep(0, server.asked["/image"]))
    await eventually(lambda: asyncio.sleep(0, _cached(tmp_path)))
    agent.kill()
    agent.communicate()
    assert _cached(tmp_path) == {f"{image.sha256}.unfinished"}
    store = _store(tmp_path)
    assert _cached(tmp_path) == set()
    server.may_end.set()
    assert (await store.link(image, tmp_path / "a")).path.read_bytes() == _CONTENT


async def test_a_full_disk_is_told_and_nothing_is_left(tmp_path: Path, server: ImageServer) -> None:
    image = server.image(_CONTENT)
    agent = _agent_process(tmp_path, image, max_file_bytes=len(_CONTENT) // 2)
    _, said = await asyncio.to_thread(agent.communicate)
    assert "can't be written to" in said
    assert "File too large" in said
    assert _cached(tmp_path) == set()


async def test_a_disk_without_enough_room_is_told_before_anything_is_written(
    tmp_path: Path, server: ImageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    why = await _refused(_store(tmp_path), server.image(_CONTENT), tmp_path / "a")
    assert re.search(r"the node's disk has 0\.00 GiB free", why)


async def test_guests_keep_what_a_file_of_the_node_was_when_it_was_checked(
    tmp_path: Path,
) -> None:
    file = tmp_path / "image.raw"
    file.write_bytes(_CONTENT)
    image = an_image(_CONTENT, path=str(file))
    store = _store(tmp_path)
    before = await store.link(image, tmp_path / "a")
    file.write_bytes(b"other content")
    after = await store.link(image, tmp_path / "b")
    assert before.path.read_bytes() == after.path.read_bytes() == _CONTENT
    why = await _refused(store, an_image(b"new", path=str(file)), tmp_path / "c")
    assert _name(b"new") in why
    assert _name(b"other content") in why
    assert file.read_bytes() == b"other content"


async def test_a_file_that_ends_earlier_than_was_said_is_no_longer_than_it_is(
    tmp_path: Path,
) -> None:
    content = _SHORT_FILE.read_bytes()
    image = an_image(content, path=str(_SHORT_FILE))
    local = await _store(tmp_path).link(image, tmp_path / "a")
    assert local.path.read_bytes() == content


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    image = an_image(b"", path=str(tmp_path / "nothing"))
    assert "No such file" in await _refused(_store(tmp_path), image, tmp_path / "a")


async def test_a_pipe_is_no_image_and_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    image = an_image(b"", path=str(pipe))
    async with asyncio.timeout(15):
        refused = await _refused(_store(tmp_path), image, tmp_path / "a")
    assert "is no file with an image" in refused


@pytest.mark.parametrize("has_credentials", [True, False])
async def test_an_image_comes_from_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_credentials: bool
) -> None:
    with mock_aws():
        s3: Any = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="images")
        s3.put_object(Bucket="images", Key="deep/image.raw", Body=_CONTENT, ACL="public-read")
        if not has_credentials:
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        store = _store(tmp_path)
        image = an_image(_CONTENT, url="s3://images/deep/image.raw")
        assert (await store.link(image, tmp_path / "a")).path.read_bytes() == _CONTENT
        why = await _refused(store, an_image(b"x", url="s3://images/nothing"), tmp_path / "b")
        assert "s3://images/nothing: " in why
        assert "NoSuchKey" in why


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"not qcow2 at all" * 10, "no qcow2 file"),
        (b"", "no qcow2 file"),
        (struct.pack(">4sIQIIQ", b"QFI\xfb", 2, 512, 11, 16, 2**30).ljust(512), "another file"),
        (
            struct.pack(">4sIQIIQ", b"QFI\xfb", 3, 0, 0, 16, 2**30).ljust(72, b"\0")
            + struct.pack(">Q", 4),
            "another file",
        ),
    ],
)
async def test_a_qcow2_image_that_is_none_or_needs_files_of_the_host_is_refused(
    tmp_path: Path, server: ImageServer, header: bytes, why: str
) -> None:
    image = server.image(header, format="qcow2")
    with pytest.raises(BootFailed, match=why):
        await _store(tmp_path).link(image, tmp_path / "a")


async def test_the_log_tells_of_a_fetch_without_what_signs_its_url(
    tmp_path: Path, server: ImageServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    image = server.image(_CONTENT, url=server.url("/image?signature=s3cret"))
    await _store(tmp_path).link(image, tmp_path / "a")
    told = [record.getMessage() for record in caplog.records if "image" in record.getMessage()]
    assert told == ["fetching image", "image fetched"]
    assert "s3cret" not in "".join(repr(vars(record)) for record in caplog.records)


_AGENT: Final = """
import asyncio, resource, sys
from pathlib import Path
import msgspec
from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.images.cache import ImageCache
from fleetcast.agent.images.catalogue import Image
from fleetcast.agent.images.store import ImageStore
folder, entry, max_file_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
store = ImageStore(ImageCache(folder / "images", max_bytes=2**30))
try:
    asyncio.run(store.link(msgspec.json.decode(entry, type=Image), folder / "guest"))
except BootFailed as failure:
    sys.exit(str(failure))
"""


def _agent_process(
    tmp_path: Path, image: Image, *, max_file_bytes: int = _ROOMY
) -> subprocess.Popen[str]:
    """Start another process that gives a guest an image, on a disk with only so much room."""
    entry = msgspec.json.encode(image).decode()
    return subprocess.Popen(
        [sys.executable, "-B", "-c", _AGENT, str(tmp_path), entry, str(max_file_bytes)],
        stderr=subprocess.PIPE,
        text=True,
    )
