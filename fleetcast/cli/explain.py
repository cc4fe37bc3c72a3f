"""`fleetcast explain`: what happened in a launch, told to somebody who was asked why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from rich.padding import Padding
from rich.text import Text

from fleetcast.cli.read_api import ReadApi, api_url_option
from fleetcast.cli.terminal import output_console, print_json
from fleetcast.launch_words import tell_launch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.launch_words import Line, Tone

_INDENT: Final = 4
_STYLES: Final[Mapping[Tone, str]] = {
    "plain": "",
    "strong": "bold",
    "good": "green",
    "bad": "red",
    "doubtful": "yellow",
}

_EXAMPLES = """\b
Examples:
  fleetcast explain r-0123456789abcdef0
  fleetcast explain r-0123456789abcdef0 --json | jq '.story.verdicts'
"""


@click.command(epilog=_EXAMPLES)
@click.argument("reservation_id", metavar="RESERVATION-ID")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@api_url_option
def explain(reservation_id: str, *, as_json: bool, api_url: str | None) -> None:
    """Tell what happened in a launch: why it was refused, or why it went where it went.

    How it ended comes first. Then each region in the order in which they were tried: its score,
    why it was tried then, what was asked there (with the time since the launch began, and how long
    the answer took), and why it was left. Launches are kept for two weeks.
    """
    if reservation_id.startswith("i-"):
        raise click.ClickException(
            f"{reservation_id} is an instance; a launch goes by its reservation's id: "
            f"aws ec2 describe-instances --instance-ids {reservation_id} "
            "--query 'Reservations[].ReservationId'"
        )
    launch = ReadApi(api_url).launch(reservation_id)
    if as_json:
        print_json(launch)
        return
    console = output_console()
    for line in tell_launch(launch):
        console.print(_shown(line))


def _shown(line: Line) -> Padding:
    """Indent a line whole, also where it goes on below."""
    return Padding(
        Text(line.text, style=_STYLES[line.tone]), (0, 0, 0, _INDENT * line.depth), expand=False
    )
