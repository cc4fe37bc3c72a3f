"""`fleetcast`: the operator's command line. This module owns the list of its commands."""

from __future__ import annotations

import click

from fleetcast import __version__
from fleetcast.cli.catalogue import catalogue
from fleetcast.cli.explain import explain
from fleetcast.cli.recommend import recommend
from fleetcast.cli.scores import scores

_EXAMPLES = """\b
Examples (FLEETCAST_API_URL names the deployment's API):
  fleetcast recommend --type t3.medium
  fleetcast scores --type t3.medium
  fleetcast explain r-0123456789abcdef0
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="fleetcast")
def fleetcast() -> None:
    """Operate a fleet of your own nodes behind an EC2-compatible API."""


fleetcast.add_command(catalogue)
fleetcast.add_command(explain)
fleetcast.add_command(recommend)
fleetcast.add_command(scores)


def main() -> None:
    """Run the command line and exit: 0 when done, 1 when it failed, 2 when it was misused."""
    fleetcast(prog_name="fleetcast")
