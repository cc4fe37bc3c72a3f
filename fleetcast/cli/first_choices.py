"""Where launches would have gone first under other weights, by the sweeps of the past. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fleetcast.selection import RegionScore, count_tied, is_blind, rank_regions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetcast.cli.rescored import RescoredRegion

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


class FirstChoices:
    """Compares, for each type, each sweep's first choices with those under other weights.

    tie_band: as rank_regions has it.
    """

    def __init__(self, *, tie_band: float) -> None:
        self._tie_band = tie_band
        self._compared: defaultdict[str, Counter[_Choices]] = defaultdict(Counter)

    def add(self, sweep: Iterable[RescoredRegion]) -> None:
        """Take one sweep's regions in."""
        before: defaultdict[str, dict[str, RegionScore]] = defaultdict(dict)
        after: defaultdict[str, dict[str, RegionScore]] = defaultdict(dict)
        for one in sweep:
            for instance_type in one.before:
                before[instance_type][one.region] = one.before[instance_type]
                after[instance_type][one.region] = one.after[instance_type]
        for instance_type, scores in before.items():
            choices = (
                _first_choices(scores, self._tie_band),
                _first_choices(after[instance_type], self._tie_band),
            )
            self._compared[instance_type][choices] += 1

    def result(self) -> list[TypeReplay]:
        """Return what was found of each type, by name."""
        return [
            _summary(instance_type, self._compared[instance_type])
            for instance_type in sorted(self._compared)
        ]


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


def _summary(instance_type: str, compared: Counter[_Choices]) -> TypeReplay:
    # Launches take the smallest of the tied regions' hashes, so two sets of them have the same
    # first choice for just the part of the launches that is their overlap over their union.
    stayed = sum(
        sweeps * len(before & after) / len(before | after)
        for (before, after), sweeps in compared.items()
    )
    return TypeReplay(
        instance_type=instance_type,
        sweeps=compared.total(),
        elsewhere_share=1 - stayed / compared.total(),
        before=_shares([(before, sweeps) for (before, _), sweeps in compared.items()]),
        after=_shares([(after, sweeps) for (_, after), sweeps in compared.items()]),
    )


def _shares(choices: list[tuple[frozenset[str], int]]) -> dict[str, float]:
    all_sweeps = sum(sweeps for _, sweeps in choices)
    shares: defaultdict[str, float] = defaultdict(float)
    for regions, sweeps in choices:
        for region in regions:
            shares[region] += sweeps / len(regions) / all_sweeps
    return dict(sorted(shares.items(), key=lambda share: (-share[1], share[0])))
