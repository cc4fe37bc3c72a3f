"""What a sweep writes of a region is what the API answers and the command line replays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from click.testing import CliRunner

from fleetcast.cli.command import fleetcast
from fleetcast.cli.replay import DEFAULT_MAX_SCORE_AGE_S
from fleetcast.read_answers import ScoresAnswer
from fleetcast.score_history import PastScore, SweepRecord
from fleetcast.scoring import DEFAULT_WEIGHTS, Reading, RegionSignals
from lambdas.region_scores import ANY_TYPE, RegionScoresTable, RegionSweep, ScoreRow
from lambdas.settings import LaunchOptions
from tests.read_api import call, read_api
from tests.tables import FLEET, REGION_SCORES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

T3 = "t3.medium"
READINGS = {
    "queue_depth": Reading.of(3, observed_at_s=100.5),
    "gpu_utilization": Reading.absent("refused", "AccessDenied: no"),
    "spot_placement": Reading(value=0.8, status="stale", observed_at_s=50, error="Throttling"),
    "capacity_block_trend": Reading(value=0, status="not_offered", error="not for t3"),
}


def written(computed_at_s: float) -> RegionSweep:
    rows = [
        ScoreRow(
            instance_type=instance_type,
            region="eu-west-1",
            score=score,
            missing_scored_signals=1,
            telemetry_status="partial",
            signals=READINGS,
            reasons=("telemetry is partial: GPU", "low queue depth (3)"),
            computed_at_s=computed_at_s,
            sweep_id="sweep-1",
            expires_at_s=int(computed_at_s) + 86_400,
        )
        for instance_type, score in ((ANY_TYPE, 1030.0), (T3, 0.4321))
    ]
    return RegionSweep(
        rows=rows,
        memory=b"",
        memory_expires_at_s=int(computed_at_s) + 86_400,
        record=SweepRecord(
            region="eu-west-1",
            sweep_id="sweep-1",
            computed_at_s=computed_at_s,
            scores={
                ANY_TYPE: PastScore(1030.0, 1, "partial"),
                T3: PastScore(0.4321, 1, "partial", RegionSignals()),
            },
        ),
        record_expires_at_s=int(computed_at_s) + 86_400,
    )


def test_a_row_is_answered_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with read_api(monkeypatch) as api:
        RegionScoresTable(api.dynamodb, REGION_SCORES).write(written(time.time()))
        typed, untyped = (
            msgspec.json.decode(call(f"/v1/scores{query}")["body"], type=ScoresAnswer)
            for query in (f"?instance-type={T3}", "")
        )

    [place] = [place for place in typed.regions if place.region == "eu-west-1"]
    assert (typed.scored_type, place.score, place.telemetry_status) == (T3, 0.4321, "partial")
    assert place.missing_scored_signals == 1
    assert place.reasons[-2:] == ("telemetry is partial: GPU", "low queue depth (3)")
    assert place.signals == READINGS
    assert 1030 in {place.score for place in untyped.regions}


def test_a_sweep_that_was_written_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.json"
    weights.write_bytes(msgspec.json.encode(DEFAULT_WEIGHTS))
    with read_api(monkeypatch) as api:
        RegionScoresTable(api.dynamodb, REGION_SCORES).write(written(time.time() - 60))
        names = ["--table", REGION_SCORES, "--fleet-table", FLEET]
        result = CliRunner().invoke(
            fleetcast, ["scores", "replay", *names, "--weights", str(weights), "--json"]
        )

    assert result.exit_code == 0, result.output
    [replay] = msgspec.json.decode(result.stdout)["types"]
    assert (replay["instance_type"], replay["sweeps"]) == (T3, 1)


def test_replay_calls_scores_stale_when_launching_does() -> None:
    assert LaunchOptions().max_score_age_s == DEFAULT_MAX_SCORE_AGE_S
