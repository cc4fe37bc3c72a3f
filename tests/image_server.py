"""An HTTPS server of files, and images and catalogues as they are made from its files."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleetcast.agent.images.catalogue import Image
from tests.tls_endpoint import HOST, respond, served, write_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    import pytest

ID: Final = "ami-0123456789abcdef0"


@dataclass
class ImageServer:
    """files: what is served, by path. statuses: answered once each before a path's file is.

    may_end: no image is sent whole before it is set. asked: how often each path was asked for.
    """

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    may_end: threading.Event = field(default_factory=threading.Event)

    def url(self, path: str) -> str:
        return f"https://{HOST}:{self.port}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked[path] += 1
        if statuses := self.statuses.get(path):
            respond(request, status=statuses.pop(0))
        elif path in self.redirects:
            request.send_response(302)
            request.send_header("Location", self.redirects[path])
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif path not in self.files:
            respond(request, status=404)
        else:
            self._send(request, self.files[path])

    def _send(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        middle = len(content) // 2
        request.wfile.write(content[:middle])
        if request.path.partition("?")[0] == "/image":
            self.may_end.wait()
        request.wfile.write(content[middle:])

    def image(self, content: bytes, **changed: str) -> Image:
        """Serve an image, and return its entry."""
        self.files["/image"] = content
        return an_image(content, **{"url": self.url("/image"), **changed})


@contextlib.contextmanager
def image_server(folder: Path, environment: pytest.MonkeyPatch) -> Iterator[ImageServer]:
    """Serve files over HTTPS to clients that trust what SSL_CERT_FILE holds."""
    certificate = write_certificate(folder)
    environment.setenv("SSL_CERT_FILE", str(certificate[0]))
    server = ImageServer()
    server.may_end.set()
    with served(certificate, server.answer) as port:
        server.port = port
        try:
            yield server
        finally:
            server.may_end.set()


def an_image(content: bytes, **changed: str) -> Image:
    """Return the entry of a raw image with that content."""
    fields = {
        "id": ID,
        "sha256": hashlib.sha256(content).hexdigest(),
        "format": "raw",
        "architecture": "x86_64",
    }
    return Image(**(fields | changed))  # type: ignore[arg-type] # a test names what differs


def catalogue_text(*images: Image) -> str:
    """Return the images.toml that holds these."""
    return "".join(_table(image) for image in images)


def _table(image: Image) -> str:
    names = ("id", "path", "url", "sha256", "format", "architecture", "firmware", "name")
    values = {name: getattr(image, name) for name in names}
    lines = [f'{name} = "{value}"\n' for name, value in values.items() if value is not None]
    return "[[image]]\n" + "".join(lines)
