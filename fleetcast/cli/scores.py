"""`fleetcast scores`: how good each region is to launch in, and what each score is made of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec
from click.core import ParameterSource
from rich.console import Group
from rich.live import Live
from rich.text import Text

from fleetcast.cli.read_api import ReadApi, api_url_option
from fleetcast.cli.replay import replay
from fleetcast.cli.scores_view import explanation_view, scores_view
from fleetcast.cli.terminal import output_console, print_json
from fleetcast.scoring import (
    SCALES,
    RegionSignals,
    SignalReadings,
    score_terms,
    weighted_score,
    with_worst_for_missing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from fleetcast.read_answers import ScoresAnswer
    from fleetcast.selection import RegionReport

WATCH_INTERVAL_S = 5.0

_EXAMPLES = """\b
Examples:
  fleetcast scores --type t3.medium
  fleetcast scores --type t3.medium --watch
  fleetcast scores --json | jq '.regions[0].region'
  fleetcast scores explain us-east-1 --type t3.medium
  fleetcast scores replay --weights new.json --since 24h --table TABLE --fleet-table TABLE
"""


@click.group(invoke_without_command=True, epilog=_EXAMPLES)
@click.option("--type", "instance_type", metavar="TYPE", help="Scores for this instance type.")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@click.option("--watch", is_flag=True, help="Ask again and again, until Ctrl-C.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=WATCH_INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="How long --watch waits before it asks again.",
)
@api_url_option
@click.pass_context
def scores(
    context: click.Context,
    *,
    instance_type: str | None,
    as_json: bool,
    watch: bool,
    every_s: float,
    api_url: str | None,
) -> None:
    """Show each region's score, its signals and the reasons in words.

    Lower scores are better. Each signal has its status and its age: ok; stale (the last good value
    is shown, the worst is counted); missing; refused (AWS says no); not_offered (there is nothing
    to read); failed. Without --type, or for a type that isn't scored, these are the scores that
    need no instance type.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_before(context, context.invoked_subcommand)
        return
    api = ReadApi(api_url)
    if watch:
        _watch(api, instance_type, every_s=every_s, as_json=as_json)
    elif as_json:
        print_json(api.scores(instance_type))
    else:
        console = output_console()
        console.print(scores_view(api.scores(instance_type), width=console.width))


@scores.command(epilog="Example: fleetcast scores explain us-east-1 --type t3.medium")
@click.argument("region")
@click.option("--type", "instance_type", metavar="TYPE", required=True, help="The instance type.")
@api_url_option
def explain(region: str, instance_type: str, api_url: str | None) -> None:
    """Show the sum behind REGION's score, term by term.

    A signal without a value of now counts as its worst.
    """
    answer = ReadApi(api_url).scores(instance_type)
    place = _find(answer, region, instance_type)
    terms = score_terms(_counted(place), answer.weights)
    console = output_console()
    console.print(explanation_view(place, terms, answer))
    if weighted_score(_counted(place), answer.weights) != place.score:
        console.print(
            f"The score is {place.score:g}: the weights have been changed since it was made. "
            "The next sweep's will be this sum.",
            style="yellow",
        )


scores.add_command(replay)


def _refuse_options_before(context: click.Context, subcommand: str) -> None:
    """Refuse options that the user would think count, though the subcommand has its own."""
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"give the options after `{subcommand}`")


def _watch(api: ReadApi, instance_type: str | None, *, every_s: float, as_json: bool) -> None:
    """Show the scores until Ctrl-C, which is how watching ends: no error."""
    console = output_console()
    try:
        if console.is_terminal and not as_json:
            with Live(console=console, auto_refresh=False) as live:
                for look in _looks(api, instance_type, every_s):
                    live.update(_frame(look, width=console.width), refresh=True)
            return
        for look in _looks(api, instance_type, every_s):
            if look.error is not None:
                click.echo(f"{look.error}; asking again", err=True)
            elif as_json:
                print_json(look.answer, lines=True)
            else:
                console.print(scores_view(look.answer, width=console.width))
    except KeyboardInterrupt:
        return


class _Look(NamedTuple):
    """The newest answer, and why there is none of now."""

    answer: ScoresAnswer
    error: str | None = None


def _looks(api: ReadApi, instance_type: str | None, every_s: float) -> Iterator[_Look]:
    """Ask again and again. The first time, an error ends it; later, the last answer is kept."""
    answer = api.scores(instance_type)
    yield _Look(answer)
    while True:
        time.sleep(every_s)
        try:
            answer = api.scores(instance_type)
        except click.ClickException as error:
            yield _Look(answer, error.message)
        else:
            yield _Look(answer)


def _frame(look: _Look, *, width: int) -> RenderableType:
    view = scores_view(look.answer, width=width)
    if look.error is None:
        return view
    since = time.strftime("%H:%M:%S", time.localtime(look.answer.answered_at_s))
    # Above: what doesn't fit on the terminal is cut off below.
    return Group(Text(f"As of {since}. Asking again: {look.error}", style="yellow"), view)


def _find(answer: ScoresAnswer, region: str, instance_type: str) -> RegionReport:
    places = {place.region: place for place in answer.regions}
    if region not in places:
        raise click.ClickException(
            f"{region!r} is not among the fleet's regions: {', '.join(places)}"
        )
    if places[region].score is None:
        raise click.ClickException(f"no sweep has scored {region} yet")
    if answer.scored_type is None:
        raise click.ClickException(
            f"{instance_type} has no score of its own: it is placed by the score that needs no "
            "type, 10 x queue depth + GPU % + 5 x running jobs + 1000 x unread of queue and GPU. "
            "To score it, add it to scoring.scored_instance_types"
        )
    return places[region]


def _counted(place: RegionReport) -> RegionSignals:
    """Return the values that the sweep counted."""
    read = {signal: place.signals[signal].counted for signal in SCALES if signal in place.signals}
    return with_worst_for_missing(msgspec.convert(read, SignalReadings))
