"""Real NATS servers on free loopback ports: one, or a cluster."""

from __future__ import annotations

import sysconfig
import tempfile
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.local.conditions import wait_until
from fleetcast.local.processes import Processes, ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_BINARY: Final = Path(sysconfig.get_path("scripts")) / "nats-server"
_START_DEADLINE_S: Final = 10.0
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class NatsServer:
    """A running server. url: nats://127.0.0.1:port. monitoring_url: http://127.0.0.1:port.

    route_url: where others of its cluster connect, or None for a server on its own.
    """

    url: str
    monitoring_url: str
    route_url: str | None
    pid: int


class _Ports(msgspec.Struct):
    """The file that the server writes once it listens."""

    nats: list[str]
    monitoring: list[str]
    cluster: list[str] = []


class _Route(msgspec.Struct):
    remote_id: str


class _Routez(msgspec.Struct):
    routes: list[_Route] = []


@contextmanager
def nats_server() -> Iterator[NatsServer]:
    """Run one server for the length of a `with` block. Raises ProcessFailed if it can't start."""
    with nats_cluster(1) as (server,):
        yield server


@contextmanager
def nats_cluster(servers: int) -> Iterator[list[NatsServer]]:
    """Run a cluster, each server connected to every other. Raises ProcessFailed."""
    cluster = "local" if servers > 1 else None
    with tempfile.TemporaryDirectory(prefix="nats-") as directory, Processes() as processes:
        running: list[NatsServer] = []
        for number in range(1, servers + 1):
            server = start_nats_server(
                processes,
                Path(directory),
                name=f"nats-{number}",
                cluster=cluster,
                route_url=running[0].route_url if running else None,
            )
            running.append(server)
        if not wait_until(lambda: all(_peers(s) == servers - 1 for s in running), _TIMEOUT_S):
            raise ProcessFailed(f"{servers} NATS servers found no way to each other")
        yield running


def start_nats_server(
    processes: Processes,
    directory: Path,
    *,
    name: str,
    log_dir: Path | None = None,
    cluster: str | None = None,
    route_url: str | None = None,
) -> NatsServer:
    """Start a server and wait until it listens; `processes` stops it.

    directory: for its configuration. log_dir: for NAME.log (default: the same). cluster: the name
    of the cluster that it is of, if any. route_url: that of a server which is there already.
    Raises ProcessFailed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / f"{name}.conf"
    config.write_text(_config(directory, name, cluster, route_url), encoding="utf-8")
    log = (log_dir or directory) / f"{name}.log"
    child = processes.start(name, [_BINARY, "-c", config], log=log)
    ports_file = directory / f"nats-server_{child.pid}.ports"
    child.wait_until(lambda: _read_ports(ports_file), within_s=_START_DEADLINE_S)
    ports = _read_ports(ports_file)
    if ports is None:
        raise ProcessFailed(f"{name} took back where it listens: {ports_file}")
    return NatsServer(
        url=ports.nats[0],
        monitoring_url=ports.monitoring[0],
        route_url=ports.cluster[0] if ports.cluster else None,
        pid=child.pid,
    )


def _config(directory: Path, name: str, cluster: str | None, route_url: str | None) -> str:
    lines = [
        f'server_name: "{name}"',
        'listen: "127.0.0.1:-1"',
        'http: "127.0.0.1:-1"',
        f'ports_file_dir: "{directory}"',
        # A client that hangs swallows what it is sent until the server gives it up; by default
        # that is after four minutes.
        'ping_interval: "10s"',
        "ping_max: 2",
    ]
    if cluster:
        routes = f', routes: ["{route_url}"]' if route_url else ""
        lines.append(f'cluster: {{ name: "{cluster}", listen: "127.0.0.1:-1"{routes} }}')
    return "\n".join(lines) + "\n"


def _read_ports(path: Path) -> _Ports | None:
    """Return what the file says; None while it isn't there, or isn't whole."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Ports)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _peers(server: NatsServer) -> int:
    """Count the servers that this one has routes to; to each there are several."""
    with urllib.request.urlopen(f"{server.monitoring_url}/routez", timeout=_TIMEOUT_S) as reply:  # noqa: S310 - http on loopback
        routez = msgspec.json.decode(reply.read(), type=_Routez)
    return len({route.remote_id for route in routez.routes})
