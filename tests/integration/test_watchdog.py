"""An agent that NATS no longer serves ends with one clear line; one whose NATS is down stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

import nkeys  # type: ignore[import-untyped] # it has no annotations
import pytest

from fleetcast.agent.limited_subscription import NatsSubscriptions
from fleetcast.agent.nats_client import AgentClient
from fleetcast.agent.nats_troubles import ConnectionLost, Troubles, close_in_time
from fleetcast.agent.service_manager import ServiceManager
from fleetcast.agent.watchdog import Watchdog
from tests.agent_process import AgentProcess
from tests.captured_logs import captured_logs
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.silent_wire import Wire
from tests.tls_endpoint import write_certificate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

# nats-py doesn't close the sockets of attempts that failed.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

_SILENCE_S: Final = 1


class HeardManager:
    """A service manager's end of the socket. path: what NOTIFY_SOCKET is to say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))

    async def hears(self, words: str) -> None:
        """Wait until that is said."""
        heard = ""
        async with asyncio.timeout(15):
            while words not in heard:
                message = await asyncio.get_running_loop().sock_recv(self._socket, 4_096)
                heard = message.decode()

    def forget(self) -> None:
        """Leave out what was said and not heard yet."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4_096)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[HeardManager]:
    with contextlib.closing(HeardManager(tmp_path / "notify")) as heard:
        yield heard


@contextlib.asynccontextmanager
async def watched(
    url: str,
    manager: HeardManager,
    *,
    silence_s: float = _SILENCE_S,
    **options: Any,  # noqa: ANN401 - as nats-py's
) -> AsyncIterator[asyncio.Task[None]]:
    """Connect as the agent does, and watch that; yield what ends when the agent would."""
    connection = AgentClient()
    subscriptions = NatsSubscriptions(connection, lambda _message: None)

    async def ignore(_error: Exception) -> None:
        """Let the client try on."""

    async def disconnected() -> None:
        subscriptions.connection_lost()

    options = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1} | options
    await connection.connect(url, error_cb=ignore, disconnected_cb=disconnected, **options)
    watchdog = Watchdog(
        connection,
        round_trip=subscriptions.settle,
        manager=ServiceManager(str(manager.path)),
        silence_s=silence_s,
        look_every_s=0.05,
    )
    watching = asyncio.create_task(watchdog.keep_watching())
    try:
        await manager.hears("serving")
        yield watching
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await close_in_time(connection)
        del connection
        gc.collect()  # what it left is not for the next test to find


async def _gives_up(watching: asyncio.Task[None], *words: str) -> None:
    with pytest.raises(ConnectionLost) as lost:
        await asyncio.wait_for(asyncio.shield(watching), 15)
    for word in words:
        assert word in str(lost.value)
    assert "\n" not in str(lost.value)


async def test_a_server_that_hangs_with_the_connection_standing_ends_it(
    tmp_path: Path, manager: HeardManager
) -> None:
    async with NatsProcess(tmp_path) as server, watched(server.url, manager) as watching:
        server.hang()
        await _gives_up(watching, "has not answered", "the connection stands")


async def test_a_server_that_hangs_when_the_client_connects_anew_ends_it(
    tmp_path: Path, manager: HeardManager
) -> None:
    async with (
        NatsProcess(tmp_path) as server,
        watched(server.url, manager, ping_interval=0.1, connect_timeout=0.2) as watching,
    ):
        server.hang()
        await _gives_up(watching, "NATS listens, but has not let this agent in", "doesn't answer")


async def test_a_server_that_is_down_is_waited_for_and_the_service_manager_is_told_so(
    tmp_path: Path, manager: HeardManager
) -> None:
    async with NatsProcess(tmp_path) as server, watched(server.url, manager) as watching:
        await server.kill()
        down_since_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < down_since_s + 2 * _SILENCE_S:
            await manager.hears("WATCHDOG=1\nSTATUS=NATS is down")
        await server.start()
        await manager.hears("serving")
        assert not watching.done()


async def test_a_socket_that_leads_nowhere_is_replaced_and_the_agent_stays(
    tmp_path: Path, manager: HeardManager
) -> None:
    async with (
        NatsProcess(tmp_path) as server,
        Wire(server.port) as wire,
        watched(wire.url, manager, silence_s=20, ping_interval=0.05) as watching,
    ):
        wire.go_silent()

        async def connections() -> int:
            return wire.connections

        await eventually(connections, lambda made: made == 2)
        manager.forget()
        await manager.hears("serving")
        assert not watching.done()


async def test_a_certificate_that_is_no_longer_right_ends_it(
    tmp_path: Path, manager: HeardManager
) -> None:
    certificate, key = write_certificate(tmp_path)
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with NatsProcess(tmp_path, config) as server:
        url = server.url.replace("nats://127.0.0.1", "tls://localhost")
        async with watched(url, manager, tls=trusting) as watching:
            await server.kill()
            write_certificate(tmp_path)  # one that nobody vouches for
            await server.start()
            await _gives_up(watching, "has not let this agent in", "certificate verify failed")


async def test_credentials_that_are_revoked_while_the_server_is_away_end_it(
    tmp_path: Path, manager: HeardManager
) -> None:
    seed_file = tmp_path / "seed"
    seed_file.write_bytes(seed := _new_seed())
    async with (
        NatsProcess(tmp_path, _users(seed)) as server,
        watched(server.url, manager, nkeys_seed=str(seed_file)) as watching,
    ):
        await server.kill()
        (tmp_path / "nats.conf").write_text(_users(_new_seed()), encoding="utf-8")
        await server.start()
        await _gives_up(watching, "has not let this agent in", "Authorization Violation")


async def test_credentials_that_are_revoked_under_a_standing_connection_end_it(
    tmp_path: Path, manager: HeardManager
) -> None:
    seed_file = tmp_path / "seed"
    seed_file.write_bytes(seed := _new_seed())
    async with (
        NatsProcess(tmp_path, _users(seed)) as server,
        watched(server.url, manager, nkeys_seed=str(seed_file)) as watching,
    ):
        (tmp_path / "nats.conf").write_text(_users(_new_seed()), encoding="utf-8")
        server.reload()
        await _gives_up(watching, "Authorization Violation")


def _new_seed() -> bytes:
    return bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))


def _users(seed: bytes) -> str:
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    return f"authorization: {{ users: [{{ nkey: {public} }}] }}"


# --- the whole agent -----------------------------------------------------------------------


async def test_the_service_manager_hears_when_the_agent_serves_lives_and_leaves(
    tmp_path: Path, manager: HeardManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    async with NatsProcess(tmp_path) as server, AgentProcess(tmp_path, server.url) as agent:
        await manager.hears("READY=1\nSTATUS=serving 7 instance types")
        await manager.hears("WATCHDOG=1\nSTATUS=serving")
        agent.signal(signal.SIGTERM)
        await manager.hears("STOPPING=1")
        assert await agent.exit_code() == 0


async def test_a_service_that_starts_while_its_server_is_down_waits_for_it_and_says_so(
    tmp_path: Path, manager: HeardManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    async with NatsProcess(tmp_path) as server:
        await server.kill()
        agent = AgentProcess(tmp_path, server.url)
        await agent.start()
        await manager.hears("READY=1\nSTATUS=NATS is down")
        await manager.hears("WATCHDOG=1\nSTATUS=NATS is down")
        assert [one["message"] for one in agent.logs].count("NATS error") == 1
        await server.start()
        await agent.says("agent ready")
        await agent.kill()


async def test_a_service_that_starts_with_wrong_credentials_ends_at_once(
    tmp_path: Path, manager: HeardManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    async with NatsProcess(tmp_path, "authorization { user: agent, password: x }") as server:
        agent = AgentProcess(tmp_path, server.url)
        await agent.start()
        assert await agent.exit_code() == 1
        assert "Authorization Violation" in agent.logs[-1]["why"]


async def test_a_hung_server_ends_an_agent_that_starts_with_one_clear_line(tmp_path: Path) -> None:
    async with NatsProcess(tmp_path) as server:
        server.hang()
        agent = AgentProcess(tmp_path, server.url)
        await agent.start()
        assert await agent.exit_code() == 1
        (line,) = agent.logs
        assert line["why"] == f"can't connect to {server.url}: it doesn't answer"


async def test_a_certificate_that_nobody_vouches_for_ends_an_agent_that_starts(
    tmp_path: Path,
) -> None:
    certificate, key = write_certificate(tmp_path)
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    async with NatsProcess(tmp_path, config) as server:
        agent = AgentProcess(tmp_path, server.url.replace("nats://127.0.0.1", "tls://localhost"))
        await agent.start()
        assert await agent.exit_code() == 1
        (line,) = agent.logs
        assert "certificate verify failed" in line["why"]


# --- what it logs meanwhile ----------------------------------------------------------------


def test_a_trouble_that_repeats_is_logged_at_once_and_then_once_a_minute() -> None:
    now_s = 0.0
    troubles = Troubles(lambda: now_s)
    with captured_logs("fleetcast.agent.nats_troubles") as lines:
        for second in range(121):
            now_s = float(second)
            troubles.heard(ConnectionRefusedError(111, "refused"))
        said = [one["not_logged_before"] for one in lines.fields("NATS error")]
        assert said == [0, 59, 59]
        troubles.over()
        troubles.heard(TimeoutError())
        assert lines.fields("NATS error")[-1]["why"] == "it doesn't answer"


async def test_an_agent_that_waits_for_its_server_does_not_fill_the_log(tmp_path: Path) -> None:
    async with NatsProcess(tmp_path) as server, AgentProcess(tmp_path, server.url) as agent:
        await server.kill()
        await agent.says("NATS error")
        waited_since_s = asyncio.get_running_loop().time()

        async def two_more_attempts() -> bool:
            return asyncio.get_running_loop().time() > waited_since_s + 2.5

        await eventually(two_more_attempts)
        assert [one["message"] for one in agent.logs].count("NATS error") == 1
        await server.start()
        await agent.says("reconnected to NATS")
