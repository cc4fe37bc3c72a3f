"""`fleetcast-agent run`: the agent itself, in the foreground."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import click

from fleetcast.agent.daemon import Agent
from fleetcast.agent.ending_tasks import end_all_other_tasks
from fleetcast.agent.install.node_files import CONFIG
from fleetcast.agent.log_lines import log_json_lines
from fleetcast.agent.priority import run_ahead_of_guests
from fleetcast.agent.service_manager import ServiceManager
from fleetcast.agent.settings import AgentSettings, placed_in_file, read_settings
from fleetcast.errors import FleetcastError, InvalidConfiguration


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    default=Path(CONFIG),
    show_default=True,
    help="The agent's configuration file.",
)
def run(config: Path) -> None:
    """Run the agent in the foreground until SIGTERM or SIGINT.

    It then leaves the launch subjects, answers what is in hand and exits with 0. Guests go on
    running. Logs are JSON lines on standard error.

    Example: fleetcast-agent run --config agent.toml
    """
    log_json_lines()
    gc.freeze()  # what is loaded by now stays: to look through it all would hold a burst up
    try:
        settings = read_settings(config)
        try:
            asyncio.run(_serve(settings))
        except InvalidConfiguration as problem:
            raise placed_in_file(problem, config) from problem
    except FleetcastError as problem:
        logging.getLogger(__name__).critical("agent stopped", extra={"why": str(problem)})
        sys.exit(1)


async def _serve(settings: AgentSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        agent = Agent(settings, ServiceManager.of(os.environ))
        if not settings.is_simulated:
            run_ahead_of_guests()
        await agent.run(stop)
    finally:
        await end_all_other_tasks()
