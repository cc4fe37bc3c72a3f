"""`fleetcast-agent install`, `upgrade` and `uninstall`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import click

from fleetcast.agent.install.configuration import configuration, node_name
from fleetcast.agent.install.installation import Installation
from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")


def _on_a_tree(command: Callable[_P, None]) -> Callable[_P, None]:
    """Add the options of a command that changes a tree, and say what stops it in one line."""

    @functools.wraps(command)
    def guarded(*arguments: _P.args, **options: _P.kwargs) -> None:
        try:
            command(*arguments, **options)
        except FleetcastError as problem:
            raise click.ClickException(str(problem)) from problem

    root = click.option(
        "--root",
        type=click.Path(path_type=Path, file_okay=False, exists=True, resolve_path=True),
        default=Path("/"),
        help="A tree that becomes an image, instead of this host. systemd is not told.",
    )
    dry_run = click.option("--dry-run", is_flag=True, help="Say each step and take none.")
    return root(dry_run(guarded))


_python = click.option(
    "--python",
    help="The interpreter that fleetcast is installed for, as the node sees it; default: this one.",
)


@click.command()
@click.option("--region", help="The node's region, e.g. us-east-1.")
@click.option("--nats", "nats_url", help="The region's NATS, e.g. tls://nats.example.com:4222.")
@click.option(
    "--creds",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The node's NATS credentials; they are copied.",
)
@click.option("--zone", help="The node's zone, e.g. us-east-1a.")
@click.option("--node", help="The node's name; default: the host's.")
@click.option(
    "--family",
    "families",
    multiple=True,
    help="Serve this family only, e.g. t3; repeatable. Default: every type that the host can hold.",
)
@click.option(
    "--driver", default="qemu", show_default=True, help="What runs the guests: qemu, or simulated."
)
@click.option("--bridge", help="The host's bridge for guests; default: networks of their own.")
@click.option(
    "--start/--no-start",
    default=True,
    show_default=True,
    help="Whether the agent is started now, or with the host.",
)
@_python
@_on_a_tree
def install(  # noqa: PLR0913 - one parameter an option
    *,
    region: str | None,
    nats_url: str | None,
    creds: Path | None,
    zone: str | None,
    node: str | None,
    families: tuple[str, ...],
    driver: str,
    bridge: str | None,
    start: bool,
    python: str | None,
    root: Path,
    dry_run: bool,
) -> None:
    """Install the agent as a service of this host, and start it.

    Makes the user, folders, configuration and systemd units; a second run changes nothing. A
    configuration that is there is never overwritten. With --root and without --region only the
    image is prepared: its nodes run install themselves when they first boot.

    Example: sudo fleetcast-agent install --region us-east-1 --nats tls://nats.example.com:4222
    --creds node.creds
    """
    is_image = root != Path("/")
    if region and nats_url:
        if is_image and not node:
            raise click.UsageError("an image has no host name: give --node, or leave out --region")
        text = configuration(
            node=node or node_name(),
            region=region,
            zone=zone,
            nats_url=nats_url,
            has_credentials=creds is not None,
            driver=driver,
            families=families,
            bridge=bridge,
        )
    elif region or nats_url or not is_image:
        raise click.UsageError("--region and --nats are both needed")
    else:
        text = None
    Installation(root, say=click.echo, is_rehearsal=dry_run).install(
        python=python or _own_python(root), configuration=text, credentials=creds, start=start
    )


@click.command()
@_python
@_on_a_tree
def upgrade(*, python: str | None, root: Path, dry_run: bool) -> None:
    """Renew the installed files after a pip upgrade, and restart the agent. Guests run on.

    Example: sudo fleetcast-agent upgrade
    """
    Installation(root, say=click.echo, is_rehearsal=dry_run).upgrade(
        python=python or _own_python(root)
    )


@click.command()
@click.option("--keep-state", is_flag=True, help="Keep configuration, state and user.")
@click.option("--terminate-guests", is_flag=True, help="End the guests that run.")
@_on_a_tree
def uninstall(*, keep_state: bool, terminate_guests: bool, root: Path, dry_run: bool) -> None:
    """Take the agent off this host: service, configuration, state and user.

    Refuses while guests run. What pip installed stays.

    Example: sudo fleetcast-agent uninstall
    """
    Installation(root, say=click.echo, is_rehearsal=dry_run).uninstall(
        keep_state=keep_state, terminate_guests=terminate_guests
    )


def _own_python(root: Path) -> str:
    """Return this interpreter as the node will see it."""
    python = Path(sys.executable)
    return f"/{python.relative_to(root)}" if python.is_relative_to(root) else str(python)
