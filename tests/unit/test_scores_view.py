"""Scores as a terminal shows them."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from fleetcast.cli.scores_view import explanation_view, recommendation_view, scores_view
from fleetcast.cli.terminal import output_console
from fleetcast.read_answers import RecommendationAnswer, ScoresAnswer
from fleetcast.scoring import COUNT_LIMIT, DEFAULT_WEIGHTS, SCALES, Reading, ScoreTerm
from fleetcast.selection import RegionReport

if TYPE_CHECKING:
    from rich.console import RenderableType

NOW_S = 1_800_000_000.0
NUMBERS = {signal: number / 7 for number, signal in enumerate([*SCALES, "total_gpus"], start=1)}


def place(region: str, *, reason: str = "empty queue") -> RegionReport:
    return RegionReport(
        region=region,
        freshness="fresh",
        score=0.5,
        age_s=60,
        missing_scored_signals=0,
        telemetry_status="complete",
        signals={
            signal: Reading(value=number, status="ok", observed_at_s=NOW_S - 30)
            for signal, number in NUMBERS.items()
        },
        reasons=(reason,),
    )


def answer(*regions: RegionReport) -> ScoresAnswer:
    return ScoresAnswer(
        instance_type="t3.medium",
        scored_type="t3.medium",
        answered_at_s=NOW_S,
        weights=DEFAULT_WEIGHTS,
        regions=regions,
    )


def shown(view: RenderableType, *, width: int) -> str:
    output = StringIO()
    Console(file=output, width=width).print(view)
    return output.getvalue()


def test_a_count_that_was_not_read_is_not_shown_as_a_number() -> None:
    unread = RegionReport(
        region="us-east-1",
        freshness="fresh",
        missing_scored_signals=1,
        telemetry_status="partial",
        signals={"queue_depth": Reading(value=None, status="missing", error="no job stack")},
    )
    term = ScoreTerm(signal="queue_depth", value=COUNT_LIMIT, penalty=1, weight=0.2)

    text = shown(explanation_view(unread, [term], answer(unread)), width=120)

    assert "endless (worst)" in text
    assert "000,000" not in text


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_every_signal_is_shown_whole_on_a_terminal_of_any_width(width: int) -> None:
    text = shown(scores_view(answer(place("us-east-1")), width=width), width=width)

    assert max(map(len, text.splitlines())) <= width
    for signal, number in NUMBERS.items():
        assert f"{number:.4f}".rstrip("0").rstrip(".") in text
        assert all(word in text for word in signal.split("_"))


def test_what_comes_from_outside_is_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = place("us-east-1", reason="[red]AccessDenied[/red] [/]")
    recommended = RecommendationAnswer(
        outcome="recommended",
        region="us-east-1",
        reason="[bold]so[/nonsense]",
        errors=("[/] [link=x]",),
        regions=(hostile,),
        instance_type=None,
        scored_type=None,
        answered_at_s=NOW_S,
    )

    output_console().print(scores_view(answer(hostile), width=200))
    output_console().print(recommendation_view(recommended, width=200))

    text = capsys.readouterr().out
    assert text.count("[red]AccessDenied[/red] [/]") == 2
    assert "[bold]so[/nonsense]" in text
    assert "[/] [link=x]" in text
