"""In which order to try the regions: freshness, missing signals, score, and a spread of ties.

This module owns that order. It is pure: standard library and msgspec only; the time comes in as
an argument, and what looks random is a hash of the launch id. Source: ADR 0002.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Literal

import msgspec

from fleetcast.errors import InvalidConfiguration, InvalidSignal
from fleetcast.scoring import SCORED_TELEMETRY_SIGNALS, TelemetryStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEFAULT_TIE_BAND = 0.025  # what one spot placement point (of AWS's ten) is worth

Freshness = Literal["fresh", "stale", "unscored"]

_FRESHEST_FIRST: Mapping[Freshness, int] = {"fresh": 0, "stale": 1, "unscored": 2}


class RegionScore(msgspec.Struct, frozen=True, kw_only=True):
    """A region's score as the last sweep left it.

    score: lower is better. missing_scored_signals: how many of queue depth and GPU utilisation
    could not be read, 0-2. computed_at_s: epoch seconds.
    Raises InvalidSignal for a score or time that is not finite.
    """

    region: str
    score: float
    missing_scored_signals: int
    telemetry_status: TelemetryStatus
    computed_at_s: float

    def __post_init__(self) -> None:
        # NaN compares as neither less nor greater: the order of regions would be arbitrary.
        if not (math.isfinite(self.score) and math.isfinite(self.computed_at_s)):
            raise InvalidSignal(
                f"{self.region} has score {self.score!r} computed at {self.computed_at_s!r}; "
                "expected finite numbers"
            )


class RankedRegion(msgspec.Struct, frozen=True, kw_only=True):
    """One place in the order, with what put it there.

    score: None when unscored. age_s: of the score, in seconds; None when unscored, negative when
    the scorer's clock is ahead of ours.
    """

    region: str
    freshness: Freshness
    score: float | None = None
    age_s: float | None = None
    missing_scored_signals: int = SCORED_TELEMETRY_SIGNALS
    telemetry_status: TelemetryStatus = "unavailable"


def rank_regions(
    regions: Iterable[str],
    scores: Mapping[str, RegionScore],
    *,
    default_region: str,
    launch_id: str,
    now_s: float,
    max_score_age_s: float,
    tie_band: float = DEFAULT_TIE_BAND,
) -> list[RankedRegion]:
    """Return every region once, in the order in which to try them.

    Fresh scores come before stale ones, those before no score; then the region with fewer missing
    signals, then the lower score, then the name. Regions as good as the first one (see tie_band)
    are put in an order that depends on launch_id alone, so that a retry goes the same way and a
    crowd doesn't go to one region. When the best there is to go by lacks telemetry, the default
    region comes first, whatever the scores are.

    regions: every region to try, scored or not; a score of any other region is ignored.
    scores: by region name. launch_id: the same for each retry of a launch. now_s: epoch seconds.
    max_score_age_s: >= 0; an older score, or one from as far in the future, is stale.
    tie_band: how much worse than the first a region may score and still be as good, >= 0, if it is
    as fresh and misses as many signals; 0 turns the spreading off.
    Raises InvalidConfiguration when default_region is none of the regions.
    """
    names = set(regions)
    if default_region not in names:
        raise InvalidConfiguration(
            "default_region",
            f"{default_region!r} is not among the regions",
            expected=f"one of: {', '.join(sorted(names)) or '(no region is configured)'}",
        )
    ranked = sorted(
        (_place(name, scores.get(name), now_s, max_score_age_s) for name in names), key=_order
    )
    tied_n = count_tied(ranked, tie_band)
    ranked[:tied_n] = sorted(ranked[:tied_n], key=lambda place: _shuffle_key(launch_id, place))
    if is_blind(ranked):
        ranked.sort(key=lambda place: place.region != default_region)
    return ranked


def _place(
    region: str, score: RegionScore | None, now_s: float, max_score_age_s: float
) -> RankedRegion:
    if score is None:
        return RankedRegion(region=region, freshness="unscored")
    age_s = now_s - score.computed_at_s
    return RankedRegion(
        region=region,
        # A score from the future would otherwise stay fresh until its clock is right again.
        freshness="fresh" if abs(age_s) <= max_score_age_s else "stale",
        score=score.score,
        age_s=age_s,
        missing_scored_signals=score.missing_scored_signals,
        telemetry_status=score.telemetry_status,
    )


def _order(place: RankedRegion) -> tuple[int, int, float, str]:
    score = math.inf if place.score is None else place.score
    return _FRESHEST_FIRST[place.freshness], place.missing_scored_signals, score, place.region


def count_tied(ranked: Sequence[RankedRegion], tie_band: float) -> int:
    """Return how many regions, from the first on, are as good as the first: at least 1."""
    best = ranked[0]
    if best.score is None or tie_band <= 0:
        return 1
    tied = [
        place
        for place in ranked
        if (place.freshness, place.missing_scored_signals)
        == (best.freshness, best.missing_scored_signals)
        # Rounded, or a difference of exactly the band would be decided by binary fractions.
        and place.score is not None
        and round(place.score - best.score, 6) <= tie_band
    ]
    return len(tied)


def _shuffle_key(launch_id: str, place: RankedRegion) -> bytes:
    # Not hash(): that differs from process to process, and a retry may meet another one.
    return hashlib.sha256(f"{launch_id}\n{place.region}".encode()).digest()


def is_blind(ranked: Sequence[RankedRegion]) -> bool:
    """Tell whether no region has telemetry among those that are as fresh as the freshest.

    Counted by the scored signals, not by the status: if CPU utilisation, which is not scored,
    mattered here, the default region could gain a place by failing to report it.
    """
    return all(
        place.missing_scored_signals >= SCORED_TELEMETRY_SIGNALS
        for place in ranked
        if place.freshness == ranked[0].freshness
    )
