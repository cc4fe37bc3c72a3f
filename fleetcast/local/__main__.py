"""The command line of the local stack: `python -m fleetcast.local`, which make calls."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final, Literal

import click

from fleetcast.errors import FleetcastError, InvalidConfiguration
from fleetcast.local import background
from fleetcast.local.demo import run_demo, run_vm_demo
from fleetcast.local.fleet import DEFAULT_FLEET, parse_fleet
from fleetcast.local.progress import step
from fleetcast.local.stack import LocalStack
from fleetcast.local.stack_file import LOCAL_DIRECTORY

if TYPE_CHECKING:
    from types import FrameType

    from fleetcast.local.stack_file import StackFile

_INTERRUPTED: Final = 128 + signal.SIGINT


def _check_fleet(_context: click.Context, _option: click.Parameter, fleet: str) -> str:
    try:
        parse_fleet(fleet)
    except InvalidConfiguration as error:
        raise click.BadParameter(str(error)) from error
    return fleet


_fleet_option = click.option(
    "--fleet",
    callback=_check_fleet,
    default=DEFAULT_FLEET,
    envvar="FLEET",  # as make passes it on
    show_default=True,
    help="The nodes: REGION=COUNTxSIZE, joined by commas.",
)
_guests_option = click.option(
    "--guests",
    type=click.Choice(["simulated", "qemu"]),
    default="simulated",
    envvar="GUESTS",
    show_default=True,
    help="Whether the nodes simulate their guests or run them in QEMU.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run fleetcast on this machine: NATS, an AWS emulator, the deployed app, agents.

    Example: python -m fleetcast.local run --fleet us-east-1=3x8vcpu/32GiB
    """


@main.command()
@_fleet_option
@_guests_option
def run(fleet: str, guests: Literal["simulated", "qemu"]) -> None:
    """Start the stack and stay until Ctrl-C.

    Example: python -m fleetcast.local run --fleet us-east-1=3x8vcpu/32GiB,eu-west-1=2x4vcpu/16GiB
    """
    groups = parse_fleet(fleet)
    # Each region once, in the order of the fleet; the first is the default region.
    regions = tuple(dict.fromkeys(group.region for group in groups))
    with LocalStack(regions, fleet=groups, guests=guests) as stack:
        with step("Scoring the regions once"):
            stack.sweep("t3.medium")
        click.echo(_welcome(stack.describe()))
        signal.pause()


@main.command()
@_fleet_option
@_guests_option
def up(fleet: str, guests: str) -> None:
    """Start the stack in the background; return when it answers.

    Example: python -m fleetcast.local up
    """
    click.echo(_welcome(background.start(["run", "--fleet", fleet, "--guests", guests])))


@main.command()
def down() -> None:
    """Stop the stack that `up` (or `run`) started.

    Example: python -m fleetcast.local down
    """
    click.echo("stopped" if background.stop() else "no local stack is running")


@main.command()
def demo() -> None:
    """Tell the story of fleetcast step by step; exit with 1 if a step doesn't hold.

    Example: python -m fleetcast.local demo
    """
    sys.exit(0 if run_demo() else 1)


@main.command()
def demo_vm() -> None:
    """Boot a real Linux guest through RunInstances and follow it to its end; needs QEMU.

    Example: python -m fleetcast.local demo-vm
    """
    sys.exit(0 if run_vm_demo() else 1)


def _welcome(stack: StackFile) -> str:
    nodes = ", ".join(agent.node for agent in stack.agents)
    return f"""
EC2 endpoint   {stack.api_url}
Nodes          {nodes}
Everything     {LOCAL_DIRECTORY / "stack.json"}
Logs           {stack.log_dir}

Try:
  export AWS_ACCESS_KEY_ID={stack.access_key_id} AWS_SECRET_ACCESS_KEY={stack.secret_access_key}
  export AWS_DEFAULT_REGION={stack.regions[0]} AWS_ENDPOINT_URL_EC2={stack.api_url}
  aws ec2 run-instances --image-id ami-0123456789abcdef0 --instance-type t3.medium
  aws ec2 describe-instances
  export FLEETCAST_API_URL={stack.api_url}
  .venv/bin/fleetcast scores --type t3.medium

More, such as breaking it: docs/local-stack.md
"""


def _stop_as_ctrl_c_does(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _reach_loopback_directly() -> None:
    """Keep a proxy that the environment names out of the way to this machine."""
    for name in ("NO_PROXY", "no_proxy"):
        others = os.environ.get(name)
        os.environ[name] = ",".join(filter(None, (others, "127.0.0.1", "localhost")))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop_as_ctrl_c_does)
    _reach_loopback_directly()
    try:
        main(standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_INTERRUPTED)
    except FleetcastError as failure:
        click.echo(str(failure), err=True)
        sys.exit(1)
