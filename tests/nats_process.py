"""A real nats-server of a test's own, that it may kill and start again on the same port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import msgspec

from tests.eventually import eventually

if TYPE_CHECKING:
    from types import TracebackType

_BINARY: Final = Path(sysconfig.get_path("scripts")) / "nats-server"


class ServerSubscription(msgspec.Struct):
    """One subscription as the server holds it. max: 0 for no limit."""

    subject: str
    sid: str
    msgs: int
    qgroup: str = ""
    max: int = 0

    @property
    def tokens(self) -> int:
        """How many deliveries the server will still make. Ask only of a limited one."""
        assert self.max, f"{self.subject} has no limit"
        return self.max - self.msgs


class _Connection(msgspec.Struct):
    name: str = ""
    subscriptions_list_detail: list[ServerSubscription] = []


class _Connz(msgspec.Struct):
    connections: list[_Connection]


class NatsProcess:
    """nats-server on loopback. config: lines of a configuration file."""

    def __init__(self, folder: Path, config: str = 'ping_interval: "10s"') -> None:
        self._folder = folder
        self._config = folder / "nats.conf"
        self._config.write_text(config, encoding="utf-8")
        self._process: asyncio.subprocess.Process | None = None
        self._ports = (-1, -1)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._ports[0]}"

    @property
    def port(self) -> int:
        return self._ports[0]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start on free ports, or on those it had before."""
        ports_dir = self._folder / "ports"
        ports_dir.mkdir(exist_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *(str(_BINARY), "-c", str(self._config), "-a", "127.0.0.1"),
            *("-p", str(self._ports[0]), "-m", str(self._ports[1])),
            *("--ports_file_dir", str(ports_dir), "-l", str(self._folder / "nats.log")),
        )
        ports_file = ports_dir / f"nats-server_{self._process.pid}.ports"

        async def ports() -> tuple[int, int] | None:
            try:
                urls = json.loads(ports_file.read_text(encoding="utf-8"))
            except (FileNotFoundError, json.JSONDecodeError):
                return None
            return _port(urls["nats"][0]), _port(urls["monitoring"][0])

        found = await eventually(ports)
        assert found
        self._ports = found

    async def kill(self) -> None:
        """End it as a crash does."""
        if self._process and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    def hang(self) -> None:
        """Stop it from doing anything, with all its connections open."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        # It may go on for a moment.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Let it go on after it has hung."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def reload(self) -> None:
        """Have it read its configuration again."""
        assert self._process
        self._process.send_signal(signal.SIGHUP)

    async def subscriptions(self, connection_name: str) -> dict[str, list[ServerSubscription]]:
        """Return what connections of that name are subscribed to, by subject."""
        connz = msgspec.json.decode(await self._monitor("/connz?subs=detail"), type=_Connz)
        by_subject: dict[str, list[ServerSubscription]] = {}
        for connection in connz.connections:
            if connection.name == connection_name:
                for one in connection.subscriptions_list_detail:
                    by_subject.setdefault(one.subject, []).append(one)
        return by_subject

    async def _monitor(self, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[1])
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.partition(b"\r\n\r\n")[2]


def _port(url: str) -> int:
    port = urlsplit(url).port
    assert port
    return port
