"""The metadata service on real sockets: whose data is told, to whom, and for how long."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.guest_data.metadata_service import MetadataServices
from tests.eventually import eventually
from tests.metadata_client import (
    TOKEN_REQUEST,
    body,
    read_request,
    read_value,
    say,
    say_by_relay,
    start_relay,
    status,
)
from tests.told_instance import INSTANCE_ID, told_instance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_OTHER_ID = "i-0aaaaaaaaaaaaaaa0"


@pytest.fixture
async def services() -> AsyncIterator[MetadataServices]:
    services = MetadataServices()
    yield services
    await services.close()


async def test_each_instance_reads_its_own_data_on_its_own_socket(
    services: MetadataServices, tmp_path: Path
) -> None:
    for instance_id in (INSTANCE_ID, _OTHER_ID):
        (tmp_path / instance_id).mkdir()
        told = told_instance(instance_id=instance_id)
        socket = await services.serve(told, tmp_path / instance_id)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert await read_value(socket, "meta-data/instance-id") == instance_id
    others_token = body(await say(tmp_path / INSTANCE_ID / socket.name, TOKEN_REQUEST))
    assert status(await say(socket, read_request("meta-data/", others_token))) == 401


async def test_a_relay_carries_what_a_guest_says_and_hears(
    services: MetadataServices, tmp_path: Path
) -> None:
    whatever = bytes(range(256)) * 64
    # Longer than what the address of a socket holds.
    folder = tmp_path / ("deep, and 'odd'" * 12)
    folder.mkdir()
    socket = await services.serve(told_instance(user_data=whatever), folder)
    token = body(await say_by_relay(socket, TOKEN_REQUEST))
    answered = await say_by_relay(socket, read_request("user-data", token))
    assert answered.partition(b"\r\n\r\n")[2] == whatever


async def test_a_relay_ends_when_the_guest_or_the_service_has_gone(
    services: MetadataServices, tmp_path: Path
) -> None:
    socket = await services.serve(told_instance(), tmp_path)
    silent, cut_off = await start_relay(socket), await start_relay(socket)
    assert await say_by_relay(socket, b"") == b""
    assert silent.stdin is not None
    silent.stdin.close()
    assert await asyncio.wait_for(silent.wait(), 5) == 0
    await services.forget(INSTANCE_ID)
    assert await asyncio.wait_for(cut_off.wait(), 5) in (0, 1)
    assert await say_by_relay(socket, TOKEN_REQUEST) == b""


async def test_a_guest_that_runs_on_is_served_by_a_restarted_agent(tmp_path: Path) -> None:
    before, after = MetadataServices(), MetadataServices()
    socket = await before.serve(told_instance(), tmp_path)
    old_token = body(await say(socket, TOKEN_REQUEST))
    # The socket's file is left behind, as by kill -9.
    assert await after.serve(told_instance(), tmp_path) == socket
    assert status(await say(socket, read_request("meta-data/", old_token))) == 401
    assert await read_value(socket, "meta-data/instance-id") == INSTANCE_ID
    await before.close()
    await after.close()


async def test_new_facts_are_told_without_a_break(
    services: MetadataServices, tmp_path: Path
) -> None:
    socket = await services.serve(told_instance(), tmp_path)
    talking = asyncio.create_task(read_value(socket, "meta-data/tags/instance/Name"))
    await services.serve(told_instance(tags={"Name": "second"}), tmp_path)
    assert await talking in ("first", "second")
    assert await read_value(socket, "meta-data/tags/instance/Name") == "second"


async def test_what_is_asked_for_twice_at_once_is_served_once(
    services: MetadataServices, tmp_path: Path
) -> None:
    told = told_instance()
    twice = await asyncio.gather(*(services.serve(told, tmp_path) for _ in range(2)))
    assert await read_value(twice[0], "meta-data/instance-id") == INSTANCE_ID
    await services.forget(INSTANCE_ID)
    with pytest.raises(ConnectionRefusedError):
        await say(twice[1], TOKEN_REQUEST)


async def test_an_instance_that_is_forgotten_is_told_nothing(
    services: MetadataServices, tmp_path: Path
) -> None:
    socket = await services.serve(told_instance(), tmp_path)
    await services.forget(INSTANCE_ID)
    await services.forget(INSTANCE_ID)
    with pytest.raises(ConnectionRefusedError):
        await say(socket, TOKEN_REQUEST)


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 65_536 + b"\r\n\r\n", 431),
        (b"GET /%00%ff/../.. HTTP/1.0\r\n\r\n", 401),
    ],
)
async def test_nonsense_is_refused(
    services: MetadataServices, tmp_path: Path, request_bytes: bytes, expected: int
) -> None:
    socket = await services.serve(told_instance(), tmp_path)
    answered = await say(socket, request_bytes)
    # What is too long is not read to its end, so the answer may be lost with it.
    assert not answered or status(answered) == expected
    assert await read_value(socket, "meta-data/instance-id") == INSTANCE_ID


async def test_a_guest_that_hoards_connections_is_turned_away_and_served_again(
    services: MetadataServices, tmp_path: Path
) -> None:
    socket = await services.serve(told_instance(), tmp_path)
    hoard = [await asyncio.open_unix_connection(socket) for _ in range(16)]
    assert await say(socket, TOKEN_REQUEST) == b""
    for _, writer in hoard:
        writer.close()

    async def answered() -> bytes:
        return await say(socket, TOKEN_REQUEST)

    assert status(await eventually(answered)) == 200


@pytest.mark.host_packages
async def test_guests_on_a_bridge_are_told_apart_by_their_mac_addresses() -> None:
    """In network namespaces of its own: a bridge, and three machines on it."""
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--map-root-user", "--net", sys.executable, "-B"),
        *("-m", "tests.metadata_on_a_bridge"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )
    printed, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    assert json.loads(printed) == {
        "first": ["i-00000000000000001", "10.0.0.11"],
        "second": ["i-00000000000000002", "10.0.0.12"],
        "stranger": ["403", "403"],
    }
