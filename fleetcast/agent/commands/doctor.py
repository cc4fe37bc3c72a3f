"""`fleetcast-agent doctor`: whether this node can serve, and how to mend what keeps it from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import msgspec

from fleetcast.agent.install.node_files import CONFIG

_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    default=Path(CONFIG),
    show_default=True,
    help="The agent's configuration file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a finding, for programs.")
def doctor(config: Path, *, as_json: bool) -> None:
    """Check what the agent needs of this host and of its region's NATS; change nothing.

    Ends with 1 if something keeps the node from serving. As root it checks for the user that the
    agent runs as.

    Example: sudo fleetcast-agent doctor --config /etc/fleetcast/agent.toml
    """
    # Here, so that an agent that runs doesn't carry what only an examination needs.
    from fleetcast.agent.doctor.examination import examine  # noqa: PLC0415

    findings = examine(config)
    for one in findings:
        if as_json:
            click.echo(msgspec.json.encode(one))
            continue
        click.echo(f"{click.style(f'{one.state:<4}', fg=_COLOURS[one.state])}  ", nl=False)
        click.echo(f"{one.check}: {one.found}")
        if one.mend:
            click.echo(f"      mend: {one.mend}")
    sys.exit(any(one.state == "fail" for one in findings))
