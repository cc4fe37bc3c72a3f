"""`fleetcast-agent drain`: empty this node, and show how far it is."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import click

from fleetcast import messages
from fleetcast.agent.commands.asking import NodeSilent, ask_node
from fleetcast.agent.commands.cordon import check_is_kept, config_option
from fleetcast.agent.settings import read_settings
from fleetcast.durations import parse_duration_s
from fleetcast.errors import FleetcastError, InvalidInput
from fleetcast.subjects import NodeAction

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.settings import AgentSettings

_LOOK_EVERY_S: Final = 1.0
_NAMED_N: Final = 10
_INTERRUPTED: Final = 130


def _duration(_: click.Context, __: click.Parameter, value: str) -> int:
    try:
        return parse_duration_s(value)
    except InvalidInput as problem:
        raise click.BadParameter(str(problem)) from problem


@click.command()
@config_option
@click.option("--stop", is_flag=True, help="Stop what runs, instead of waiting for its end.")
@click.option(
    "--timeout",
    "timeout_s",
    callback=_duration,
    default="30m",
    show_default=True,
    help="How long to wait, e.g. 90s, 30m or 2h.",
)
def drain(config: Path, *, stop: bool, timeout_s: int) -> None:
    """Close this node to launches, and wait until no instance uses it.

    An instance never leaves its node: without --stop its owner has to stop or terminate it. What
    is stopped stays here; once the node is uncordoned, its owner can start it again. When the time
    is up, when this command is interrupted and when its agent is restarted, the node stays closed
    and goes on draining: the same command shows on, `uncordon` ends it. Exits with 0 once it is
    drained.

    Example: sudo fleetcast-agent drain --stop --timeout 30m --config /etc/fleetcast/agent.toml
    """
    progress = _Progress(stops=stop)
    try:
        settings = read_settings(config)
        is_drained = asyncio.run(_drain(progress, settings=settings, timeout_s=timeout_s))
    except FleetcastError as problem:
        raise click.ClickException(str(problem)) from problem
    except KeyboardInterrupt:
        progress.give_up("interrupted")
        sys.exit(_INTERRUPTED)
    if not is_drained:
        sys.exit(1)


async def _drain(progress: _Progress, *, settings: AgentSettings, timeout_s: int) -> bool:
    """Begin to drain and show what is left. Return whether the node is drained in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    request = messages.DrainRequest(stop=progress.stops)
    begun = await ask_node(settings, NodeAction.DRAIN, request)
    progress.show(begun)
    while progress.goes_on:
        if loop.time() >= deadline:
            progress.give_up("not drained in time")
            return False
        await asyncio.sleep(_LOOK_EVERY_S)
        await _look(settings, progress)
    check_is_kept(begun)
    return progress.ended()


async def _look(settings: AgentSettings, progress: _Progress) -> None:
    request = messages.DrainRequest(only_look=True)
    try:
        progress.show(await ask_node(settings, NodeAction.DRAIN, request))
    except NodeSilent as problem:  # it may be restarted just now
        progress.say(f"{problem}; waiting for it")


class _Progress:
    """What has been shown of a drain. stops: whether what runs is stopped."""

    def __init__(self, *, stops: bool) -> None:
        self.stops = stops
        self._reply: messages.CordonReply | None = None
        self._said = ""

    def say(self, what: str) -> None:
        """Say it, unless it is what was said last."""
        if what != self._said:
            click.echo(what)
            self._said = what

    def show(self, reply: messages.CordonReply) -> None:
        """Show what is left."""
        self._reply = reply
        if reply.instances:
            self.say(f"{reply.node} takes no launches; {_left(reply)}")

    @property
    def goes_on(self) -> bool:
        """Whether the node has yet to be drained."""
        return self._reply is not None and self._reply.state == "draining"

    def ended(self) -> bool:
        """Say how it has ended. Return whether the node is drained."""
        reply = self._reply
        if reply is None or reply.state == "open" or reply.instances:
            click.echo("not drained: somebody else has ended it by cordon or uncordon", err=True)
            return False
        stopped_n = reply.stopped_n
        them = "1 instance on it is" if stopped_n == 1 else f"{stopped_n} instances on it are"
        stopped = f", {them} stopped" if stopped_n else ""
        click.echo(f"{reply.node} is drained: nothing uses it{stopped}. It stays cordoned.")
        return True

    def give_up(self, why: str) -> None:
        """Say what is left when nobody waits any more."""
        if self._reply is None:
            click.echo(f"{why}: the node may have been told to drain", err=True)
            return
        left = f"{_left(self._reply)}. " if self._reply.instances else ""
        click.echo(
            f"{why}: {left}{self._reply.node} stays cordoned and goes on draining;"
            " `fleetcast-agent uncordon` ends it",
            err=True,
        )


def _left(reply: messages.CordonReply) -> str:
    left = [f"{one.instance_id} {one.state}" for one in reply.instances]
    more = f" and {len(left) - _NAMED_N} more" if len(left) > _NAMED_N else ""
    return f"{len(left)} left: {', '.join(left[:_NAMED_N])}{more}"
