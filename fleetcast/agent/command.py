"""The command `fleetcast-agent`. This module owns the list of its commands."""

from __future__ import annotations

import click

from fleetcast import __version__
from fleetcast.agent.commands.cordon import cordon, uncordon
from fleetcast.agent.commands.doctor import doctor
from fleetcast.agent.commands.drain import drain
from fleetcast.agent.commands.install import install, uninstall, upgrade
from fleetcast.agent.commands.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Serve launches on this node.

    Example: fleetcast-agent run --config /etc/fleetcast/agent.toml
    """


main.add_command(cordon)
main.add_command(drain)
main.add_command(doctor)
main.add_command(install)
main.add_command(run)
main.add_command(uncordon)
main.add_command(uninstall)
main.add_command(upgrade)
