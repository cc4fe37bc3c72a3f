"""The AWS emulator (MiniStack) as a child process on loopback.

It runs functions as processes on this very Python. Everything that it or they write stays under
one folder.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The emulator knows this account and these keys without being told.
ACCOUNT_ID = "000000000000"
ACCESS_KEY_ID = "test"
SECRET_ACCESS_KEY = "test"  # noqa: S105 - the emulator's fixed key opens nothing

# Each function call in flight has a process of its own, of some 60 MB.
_CONCURRENT_CALLS = 16
_START_DEADLINE_S = 30.0
_STOP_DEADLINE_S = 5.0
_POLL_S = 0.05
_LOG_TAIL_LINES = 20


class EmulatorNotRunning(Exception):
    """The emulator ended or didn't answer in time; the message has the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """A running emulator, and the region that the stack is deployed to."""

    port: int
    region: str
    pid: int
    log: Path

    @property
    def url(self) -> str:
        """The endpoint of every AWS API, e.g. ``http://127.0.0.1:41233``."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Say which variables point an AWS SDK or the CDK's command line at the emulator."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.url,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def local_api_url(self, api_url: str) -> str:
        """Turn a REST API's public URL into the one at which the emulator serves it."""
        api_id, _, rest = api_url.removeprefix("https://").partition(".")
        stage = rest.partition("/")[2].strip("/")
        return f"{self.url}/_aws/execute-api/{api_id}/{stage}/"


@contextlib.contextmanager
def running_emulator(directory: Path, *, region: str = "us-east-1") -> Iterator[Emulator]:
    """Run an emulator for the length of a `with` block, with no state from before.

    directory: where it writes; its log is emulator.log there. region: where the stack is.
    Raises EmulatorNotRunning if it doesn't answer in time.
    """
    shutil.rmtree(directory, ignore_errors=True)
    for name in ("home", "state", "tmp"):
        (directory / name).mkdir(parents=True)
    log = directory / "emulator.log"
    port = _free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            env=_environment(directory, port=port, region=region),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own: the functions' processes are stopped with it.
            start_new_session=True,
        )
    emulator = Emulator(port=port, region=region, pid=process.pid, log=log)
    try:
        _wait_until_it_answers(emulator, process)
        yield emulator
    finally:
        _stop(process)


def _environment(directory: Path, *, port: int, region: str) -> dict[str, str]:
    # Made from nothing: functions inherit it, and what is in the caller's must not change them.
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath]),
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        "STATE_DIR": str(directory / "state"),
        "S3_DATA_DIR": str(directory / "state" / "s3"),
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "LAMBDA_EXECUTOR": "local",
        "LAMBDA_ACCOUNT_CONCURRENCY": str(_CONCURRENT_CALLS),
        # Listeners that nobody needs, on ports that may be taken.
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "MINISTACK_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_it_answers(emulator: Emulator, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + _START_DEADLINE_S
    while not _answers(emulator.port):
        if process.poll() is not None:
            raise EmulatorNotRunning(f"The emulator ended at once:\n{_tail(emulator.log)}")
        if time.monotonic() > deadline_s:
            raise EmulatorNotRunning(
                f"The emulator didn't answer in {_START_DEADLINE_S:.0f} s:\n{_tail(emulator.log)}"
            )
        time.sleep(_POLL_S)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the emulator, and with its process group the functions that it runs."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_DEADLINE_S)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
