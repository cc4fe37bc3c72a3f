"""`fleetcast-agent cordon` and `uncordon`: close this node to launches, and open it again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetcast import messages
from fleetcast.agent.commands.asking import ask_node
from fleetcast.agent.settings import read_settings
from fleetcast.errors import FleetcastError
from fleetcast.subjects import NodeAction

if TYPE_CHECKING:
    from collections.abc import Callable

config_option: Callable[..., Callable[..., None]] = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    default=Path("/etc/fleetcast/agent.toml"),
    show_default=True,
    help="The configuration of the agent that is asked.",
)


@click.command()
@config_option
def cordon(config: Path) -> None:
    """Close this node: it takes no more launches, and starts no instance that is stopped.

    What it has goes on. It stays closed until `uncordon`, also when the agent or the host is
    restarted. The agent must be running.

    Example: sudo fleetcast-agent cordon --config /etc/fleetcast/agent.toml
    """
    reply = _ask(config, NodeAction.CORDON)
    click.echo(f"{reply.node} is cordoned: it takes no launches. {_in_use(reply)}")
    check_is_kept(reply)


@click.command()
@config_option
def uncordon(config: Path) -> None:
    """Open this node to launches again, and end a drain.

    Example: sudo fleetcast-agent uncordon --config /etc/fleetcast/agent.toml
    """
    reply = _ask(config, NodeAction.UNCORDON)
    check_is_kept(reply)
    but = f", but takes no launches for another reason: {reply.closed}" if reply.closed else ""
    click.echo(f"{reply.node} is not cordoned any more{but}.")


def _ask(config: Path, action: NodeAction) -> messages.CordonReply:
    try:
        return asyncio.run(ask_node(read_settings(config), action, messages.CordonRequest()))
    except FleetcastError as problem:
        raise click.ClickException(str(problem)) from problem


def _in_use(reply: messages.CordonReply) -> str:
    """Say how many instances a node has."""
    using_n = len(reply.instances)
    using = "1 instance uses it" if using_n == 1 else f"{using_n} instances use it"
    stopped = f", {reply.stopped_n} more on it stopped" if reply.stopped_n else ""
    return f"{using}{stopped}."


def check_is_kept(reply: messages.CordonReply) -> None:
    """Raise click.ClickException if what was ordered will not outlive the agent."""
    if reply.problem:
        raise click.ClickException(
            f"{reply.node} could not write it down, so that it is {reply.state} only until its"
            f" agent is restarted: {reply.problem}"
        )
