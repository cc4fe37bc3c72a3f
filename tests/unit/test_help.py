"""--help, of every command that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from fleetcast.agent.command import main as fleetcast_agent
from fleetcast.cli.command import fleetcast
from fleetcast.local.__main__ import main as local

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Name a command and all below it, as they are typed."""
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, *path, name)


@pytest.mark.parametrize(
    ("program", "typed", "path"),
    [
        (program, typed, path)
        for program, typed in (
            (fleetcast, "fleetcast"),
            (fleetcast_agent, "fleetcast-agent"),
            (local, "python -m fleetcast.local"),
        )
        for path in commands(program)
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_every_command_shows_an_example_of_itself(
    program: click.Command, typed: str, path: tuple[str, ...]
) -> None:
    shown = CliRunner().invoke(program, [*path, "--help"])

    assert shown.exit_code == 0, shown.output
    examples = shown.output.split("Example")[1]
    assert " ".join([typed, *path]) in " ".join(examples.split())
