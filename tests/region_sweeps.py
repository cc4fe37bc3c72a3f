"""What a sweep writes of one region, for tests that care about some of it."""

from __future__ import annotations

from fleetcast.score_history import PastScore, SweepRecord
from lambdas.region_scores import RegionSweep, ScoreRow


def sweep_of(*rows: ScoreRow, memory: bytes = b"memory") -> RegionSweep:
    """Wrap rows, all of one region and sweep."""
    row = rows[0]
    return RegionSweep(
        rows=rows,
        memory=memory,
        memory_expires_at_s=row.expires_at_s,
        record=SweepRecord(
            region=row.region,
            sweep_id=row.sweep_id,
            computed_at_s=row.computed_at_s,
            scores={
                row.instance_type: PastScore(
                    row.score, row.missing_scored_signals, row.telemetry_status
                )
                for row in rows
            },
        ),
        record_expires_at_s=row.expires_at_s,
    )
