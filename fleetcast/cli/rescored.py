"""A sweep of the past under two sets of weights: its own, and others. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from fleetcast.scoring import weighted_score
from fleetcast.selection import RegionScore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fleetcast.score_history import SweepRecord
    from fleetcast.scoring import Weights


class RescoredRegion(msgspec.Struct, frozen=True, kw_only=True):
    """One region's scores of one sweep, by instance type.

    computed_at_s: epoch seconds. before: as the sweep scored. after: under the other weights.
    The score that needs no type has no weights, so it is in neither.
    """

    region: str
    sweep_id: str
    computed_at_s: float
    before: dict[str, RegionScore]
    after: dict[str, RegionScore]


def rescore(
    record: SweepRecord, weights: Weights, *, only_type: str | None = None
) -> RescoredRegion:
    """Score a record again: all its types, or only one."""
    before: dict[str, RegionScore] = {}
    after: dict[str, RegionScore] = {}
    for instance_type, past in record.scores.items():
        if past.signals is None or only_type not in {None, instance_type}:
            continue
        before[instance_type] = score = RegionScore(
            region=record.region,
            score=past.score,
            missing_scored_signals=past.missing_scored_signals,
            telemetry_status=past.telemetry_status,
            computed_at_s=record.computed_at_s,
        )
        after[instance_type] = msgspec.structs.replace(
            score, score=weighted_score(past.signals, weights)
        )
    return RescoredRegion(
        region=record.region,
        sweep_id=record.sweep_id,
        computed_at_s=record.computed_at_s,
        before=before,
        after=after,
    )


def age_order(record: SweepRecord | RescoredRegion) -> tuple[float, str]:
    """Return what puts records in the order of their sweeps."""
    return record.computed_at_s, record.sweep_id


def group_sweeps(regions: Iterable[RescoredRegion]) -> Iterator[list[RescoredRegion]]:
    """Yield the regions of each sweep. regions: in age_order."""
    for _, sweep in groupby(regions, key=age_order):
        yield list(sweep)
