"""Where launches would have gone first under other weights, by the sweeps of the past. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fleetcast.scoring import weighted_score
from fleetcast.selection import RegionScore, count_tied, is_blind, rank_regions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetcast.score_history import PastScore, SweepRecord
    from fleetcast.scoring import Weights

_Sweep: TypeAlias = tuple[str, str]  # instance type, sweep id
_Choices: TypeAlias = tuple[frozenset[str], frozenset[str]]  # before, after


class TypeReplay(msgspec.Struct, frozen=True, kw_only=True):
    """One instance type's past, scored again.

    sweeps: how many have been compared. elsewhere_share: which part of the launches, had they come
    evenly, would have gone first to another region, 0-1. before, after: the part that each region
    would have got, by region.
    """

    instance_type: str
    sweeps: int
    elsewhere_share: float
    before: dict[str, float]
    after: dict[str, float]


def replay_first_choices(
    records: Iterable[SweepRecord], weights: Weights, *, tie_band: float
) -> list[TypeReplay]:
    """Compare, for each type, each sweep's first choices with those under other weights.

    records: of any regions and sweeps, in any order. tie_band: as rank_regions has it. The scores
    that need no type have no weights, so they are left out.
    """
    before: defaultdict[_Sweep, dict[str, RegionScore]] = defaultdict(dict)
    after: defaultdict[_Sweep, dict[str, RegionScore]] = defaultdict(dict)
    for record in records:
        for instance_type, past in record.scores.items():
            if past.signals is None:
                continue
            sweep = instance_type, record.sweep_id
            before[sweep][record.region] = _score(record, past, past.score)
            rescored = weighted_score(past.signals, weights)
            after[sweep][record.region] = _score(record, past, rescored)
    compared: defaultdict[str, list[_Choices]] = defaultdict(list)
    for sweep, scores in before.items():
        choices = _first_choices(scores, tie_band), _first_choices(after[sweep], tie_band)
        compared[sweep[0]].append(choices)
    return [_summary(instance_type, compared[instance_type]) for instance_type in sorted(compared)]


def _score(record: SweepRecord, past: PastScore, score: float) -> RegionScore:
    return RegionScore(
        region=record.region,
        score=score,
        missing_scored_signals=past.missing_scored_signals,
        telemetry_status=past.telemetry_status,
        computed_at_s=record.computed_at_s,
    )


def _first_choices(scores: Mapping[str, RegionScore], tie_band: float) -> frozenset[str]:
    """Return the regions that one launch or another would have gone to first."""
    newest_s = max(score.computed_at_s for score in scores.values())
    ranked = rank_regions(
        scores,
        scores,
        # When all are blind the default comes first, whatever the weights: any will do.
        default_region=min(scores),
        launch_id="",
        now_s=newest_s,
        max_score_age_s=0,
        tie_band=0,
    )
    tied_n = 1 if is_blind(ranked) else count_tied(ranked, tie_band)
    return frozenset(place.region for place in ranked[:tied_n])


def _summary(instance_type: str, compared: list[_Choices]) -> TypeReplay:
    # Launches take the smallest of the tied regions' hashes, so two sets of them have the same
    # first choice for just the part of the launches that is their overlap over their union.
    stayed = sum(len(before & after) / len(before | after) for before, after in compared)
    return TypeReplay(
        instance_type=instance_type,
        sweeps=len(compared),
        elsewhere_share=1 - stayed / len(compared),
        before=_shares([before for before, _ in compared]),
        after=_shares([after for _, after in compared]),
    )


def _shares(choices: list[frozenset[str]]) -> dict[str, float]:
    shares: defaultdict[str, float] = defaultdict(float)
    for regions in choices:
        for region in regions:
            shares[region] += 1 / len(regions) / len(choices)
    return dict(sorted(shares.items(), key=lambda share: (-share[1], share[0])))
