"""A guest that asks the metadata service, as bytes on a stream or through QEMU's relay."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from fleetcast.agent.guest_data import metadata_relay

_RELAY: Final = Path(metadata_relay.__file__)
TOKEN_REQUEST: Final = (
    b"PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\n"
    b"X-aws-ec2-metadata-token-ttl-seconds: 60\r\n\r\n"
)


def read_request(path: str, token: str) -> bytes:
    """Return a GET of a path below /latest/."""
    return (
        f"GET /latest/{path} HTTP/1.1\r\nHost: 169.254.169.254\r\n"
        f"X-aws-ec2-metadata-token: {token}\r\n\r\n"
    ).encode()


async def say(socket: Path, request: bytes) -> bytes:
    """Send bytes to a socket and return all that comes back."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def read_value(socket: Path, path: str) -> str:
    """Get a token and return what stands at a path below /latest/, or the status line."""
    token = body(await say(socket, TOKEN_REQUEST))
    return body(await say(socket, read_request(path, token)))


async def start_relay(socket: Path) -> asyncio.subprocess.Process:
    """Start what QEMU starts for a connection of a guest's."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_RELAY), str(socket)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def say_by_relay(socket: Path, request: bytes) -> bytes:
    """Send bytes through a relay, say that nothing more comes, and return all that comes back."""
    relay = await start_relay(socket)
    answered, _ = await relay.communicate(request)
    return answered


def status(answered: bytes) -> int:
    """Return the status of a response."""
    return int(answered.split(b" ", 2)[1])


def body(answered: bytes) -> str:
    """Return the body of a response with status 200, else its status line."""
    head, _, content = answered.partition(b"\r\n\r\n")
    return content.decode() if status(answered) == 200 else head.split(b"\r\n")[0].decode()
