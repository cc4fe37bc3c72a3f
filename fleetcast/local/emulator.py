"""The AWS emulator (MiniStack) as a child process on loopback.

It runs functions as processes on this very Python. Everything that it or they write stays under
one folder.
"""

from __future__ import annotations

import http
import http.client
import os
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleetcast.local.processes import Processes

# The emulator knows this account and these keys without being told.
ACCOUNT_ID: Final = "000000000000"
ACCESS_KEY_ID: Final = "test"
SECRET_ACCESS_KEY: Final = "test"  # noqa: S105 - the emulator's fixed key opens nothing

# Each function call in flight has a process of its own, of some 60 MB. Sixteen callers, as the
# story has, must not be throttled while what is scheduled runs.
_CONCURRENT_CALLS: Final = 20
_START_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """A running emulator, and the region that the stack is deployed to."""

    port: int
    region: str
    pid: int

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


def start_emulator(
    processes: Processes,
    directory: Path,
    *,
    region: str = "us-east-1",
    log_dir: Path | None = None,
) -> Emulator:
    """Start an emulator with no state from before; `processes` stops it and what it runs.

    directory: where it writes. region: where the stack is. log_dir: for emulator.log (default:
    `directory`). Raises ProcessFailed if it doesn't answer in time.
    """
    shutil.rmtree(directory, ignore_errors=True)
    for name in ("home", "state", "tmp"):
        (directory / name).mkdir(parents=True)
    port = _free_port()
    child = processes.start(
        "the AWS emulator",
        [sys.executable, "-m", "ministack"],
        log=(log_dir or directory) / "emulator.log",
        environment=_environment(directory, port=port, region=region),
        directory=directory,
    )
    child.wait_until(lambda: _answers(port), within_s=_START_DEADLINE_S)
    return Emulator(port=port, region=region, pid=child.pid)


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


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
