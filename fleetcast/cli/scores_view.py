"""Scores and recommendations as a terminal shows them. Renders only; asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fleetcast.durations import age_text
from fleetcast.scoring import COUNT_LIMIT, SCALES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from fleetcast.read_answers import RecommendationAnswer, ScoresAnswer
    from fleetcast.scoring import Reading, ScoreTerm
    from fleetcast.selection import RegionReport

STATUS_STYLES: Final[Mapping[str, str]] = {
    "ok": "green",
    "fresh": "green",
    "not_offered": "dim",
    "missing": "yellow",
    "stale": "yellow",
    "unscored": "yellow",
    "refused": "red",
    "failed": "red",
}
_SIGNAL_WIDTH: Final = 14  # characters of a column, its margin included


def scores_view(answer: ScoresAnswer, *, width: int) -> RenderableType:
    """Show each region with its score, every signal with status and age, and the reasons.

    width: of the terminal, characters; signals that don't fit beside the others go below them.
    """
    return Group(
        _title("Scores", answer),
        *_inputs(answer, width=width),
        *(_why(place) for place in answer.regions),
    )


def recommendation_view(answer: RecommendationAnswer, *, width: int) -> RenderableType:
    """Show the region to launch in and why, then all regions in order with what was seen of them.

    width: as scores_view has it.
    """
    table = Table(box=SIMPLE_HEAD)
    for heading in ("region", "score", "telemetry", "why"):
        table.add_column(heading, overflow="fold")
    for place in answer.regions:
        why = f"excluded: {place.excluded}" if place.excluded else "; ".join(place.reasons)
        style = "dim" if place.excluded else ""
        table.add_row(place.region, _score_cell(place), place.telemetry_status, why, style=style)
    verdict = Text(
        answer.region or "no region", style="bold green" if answer.region else "bold red"
    )
    verdict.append(f": {answer.reason}", style="default not bold")
    others = [region for region in answer.equally_good if region != answer.region]
    lines: list[RenderableType] = [verdict]
    if others:
        lines.append(Text(f"As good, so that launches spread over them: {', '.join(others)}"))
    lines += [Text(error, style="yellow") for error in answer.errors]
    if answer.regions:
        lines += ["", _title("Regions in order", answer), table, *_inputs(answer, width=width)]
    return Group(*lines)


def explanation_view(
    place: RegionReport, terms: Sequence[ScoreTerm], answer: ScoresAnswer
) -> RenderableType:
    """Show the sum behind a weighted score, term by term."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("signal", no_wrap=True)
    for heading in ("read", "counts as", "penalty", "weight", "adds"):
        table.add_column(heading, justify="right")
    for term in terms:
        if not term.weight:
            continue
        seen = place.signals.get(term.signal)
        unread = seen is None or seen.counted is None
        table.add_row(
            term.signal.replace("_", " "),
            _signal_cell(seen, answer),
            _counted(term.value) + (" (worst)" if unread else ""),
            f"{term.penalty:.4f}",
            f"{term.weight:g}",
            f"{term.contribution:.4f}",
        )
    table.add_section()
    table.add_row("sum", "", "", "", "", f"{sum(term.contribution for term in terms):.4f}")
    return Group(f"{place.region}, {_title('score', answer)}", table, _why(place))


def _counted(value: float) -> str:
    # The limit stands for any count: shown as a number, it would look like a queue.
    return "endless" if value >= COUNT_LIMIT else _number(value)


def _number(value: float) -> str:
    """Write whole numbers whole, others to four places."""
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def _title(what: str, answer: ScoresAnswer | RecommendationAnswer) -> str:
    if answer.instance_type is None:
        return f"{what} without an instance type (lower is better)"
    if answer.scored_type is None:
        return f"{what} without an instance type: {answer.instance_type} has none of its own"
    return f"{what} for {answer.instance_type} (lower is better)"


def _inputs(answer: ScoresAnswer | RecommendationAnswer, *, width: int) -> Iterator[RenderableType]:
    """Yield tables of all signals of all regions, the scored ones first."""
    seen = dict.fromkeys(signal for place in answer.regions for signal in place.signals)
    scored = [signal for signal in SCALES if signal in seen]
    others = [signal for signal in seen if signal not in SCALES]
    yield from _signal_tables(answer, scored, width=width)
    if others:
        yield "Observed, not scored"
        yield from _signal_tables(answer, others, width=width)


def _signal_tables(
    answer: ScoresAnswer | RecommendationAnswer, signals: Sequence[str], *, width: int
) -> Iterator[Table]:
    """Yield tables of all signals, side by side as far as there is room; at least one."""
    longest = max((len(place.region) for place in answer.regions), default=0)
    fitting = max(1, (width - longest) // _SIGNAL_WIDTH - 1)  # one for the score
    for first in range(0, len(signals) or 1, fitting):
        shown = signals[first : first + fitting]
        table = Table(box=SIMPLE_HEAD)
        table.add_column("region", no_wrap=True)
        for heading in ("score", *shown):
            table.add_column(heading.replace("_", " "), justify="right", overflow="fold")
        for place in answer.regions:
            cells = [_signal_cell(place.signals.get(signal), answer) for signal in shown]
            table.add_row(place.region, _score_cell(place), *cells)
        yield table


def _score_cell(place: RegionReport) -> Text:
    if place.score is None or place.age_s is None:
        return Text("unscored", style=STATUS_STYLES["unscored"])
    cell = Text(_number(place.score), style="bold")
    style = STATUS_STYLES[place.freshness]
    return cell.append(f"\n{place.freshness} {age_text(place.age_s)}", style=f"{style} not bold")


def _signal_cell(seen: Reading | None, answer: ScoresAnswer | RecommendationAnswer) -> Text:
    if seen is None:
        return Text("-", style="dim")
    age = "" if seen.observed_at_s is None else age_text(answer.answered_at_s - seen.observed_at_s)
    cell = Text("-" if seen.value is None else _number(seen.value))
    return cell.append(f"\n{seen.status} {age}".rstrip(), style=STATUS_STYLES[seen.status])


def _why(place: RegionReport) -> Text:
    line = Text(f"{place.region}: ", style="bold")
    line.append("; ".join(place.reasons), style="not bold")
    for error in place.errors:
        line.append(f"\n  {error}", style="yellow not bold")
    return line
