"""How the commands print: for people, fitted to their terminal; for programs, JSON."""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec
from rich.console import Console

_PIPED_WIDTH: Final = 200  # characters; what reads a pipe has no width of its own


def output_console() -> Console:
    """Return a console on standard output, wide when that is no terminal."""
    return Console(
        width=None if sys.stdout.isatty() else _PIPED_WIDTH,
        # An error text from AWS may hold brackets, which are no markup.
        markup=False,
        emoji=False,
        highlight=False,
    )


def print_json(answer: msgspec.Struct, *, lines: bool = False) -> None:
    """Print an answer as indented JSON, or on one line."""
    encoded = msgspec.json.encode(answer)
    click.echo(encoded if lines else msgspec.json.format(encoded, indent=2))
