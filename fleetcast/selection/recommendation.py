"""What is said to somebody who asks, before launching, where to launch.

It goes by the order that launches go by (rank_regions), and explains it. It is pure: standard
library and msgspec only; the time comes in as an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from fleetcast.scoring import SCORED_TELEMETRY_SIGNALS, Reading, TelemetryStatus
from fleetcast.selection.ranking import (
    DEFAULT_TIE_BAND,
    RankedRegion,
    RegionScore,
    count_tied,
    is_blind,
    rank_regions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Outcome = Literal["recommended", "no_telemetry", "no_gpus", "all_failed", "no_regions"]

FREE_GPUS = "free_gpus"
TOTAL_GPUS = "total_gpus"


class ScoredRegion(RegionScore, frozen=True, kw_only=True):
    """A region's score with what it was made of: readings by signal, and reasons in words."""

    signals: dict[str, Reading]
    reasons: tuple[str, ...] = ()


class RegionReport(RankedRegion, frozen=True, kw_only=True):
    """A place in the order with all that is known about it.

    excluded: why the region is no choice, whatever its score; only recommend excludes.
    """

    signals: dict[str, Reading]
    reasons: tuple[str, ...] = ()
    excluded: str | None = None

    @property
    def errors(self) -> tuple[str, ...]:
        """What kept signals from being read, as "signal: status: error"."""
        return tuple(
            f"{signal}: {seen.status}: {seen.error}"
            for signal, seen in self.signals.items()
            if seen.error is not None and seen.status != "not_offered"
        )


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Where to launch, or why that can't be said.

    outcome: `recommended`; `no_telemetry` (no region's load is known: the default region, if it
    isn't excluded); `no_gpus` (every region is excluded); `all_failed` (nothing could be read of
    any region); `no_regions` (none is configured). region: the best one; None after the last
    three. reason: in words. score, telemetry_status: the region's. errors: the region's, or without
    one every region's, as "region signal: status: error". equally_good: the regions, this one
    among them, that one launch or another goes to first. regions: all, in order, excluded ones
    last.
    """

    outcome: Outcome
    reason: str
    region: str | None = None
    score: float | None = None
    telemetry_status: TelemetryStatus = "unavailable"
    errors: tuple[str, ...] = ()
    equally_good: tuple[str, ...] = ()
    regions: tuple[RegionReport, ...] = ()


def report_regions(
    regions: Iterable[str],
    scores: Mapping[str, ScoredRegion],
    *,
    default_region: str,
    now_s: float,
    max_score_age_s: float,
) -> list[RegionReport]:
    """Return every region once, best first, ties in the order of their scores.

    Arguments and errors as rank_regions'.
    """
    ranked = rank_regions(
        regions,
        scores,
        default_region=default_region,
        launch_id="",
        now_s=now_s,
        max_score_age_s=max_score_age_s,
        tie_band=0,
    )
    return [
        RegionReport(
            **msgspec.structs.asdict(place),
            signals=scores[place.region].signals if place.region in scores else {},
            reasons=_reasons(place, scores.get(place.region)),
        )
        for place in ranked
    ]


def recommend(
    regions: Iterable[str],
    scores: Mapping[str, ScoredRegion],
    *,
    default_region: str,
    now_s: float,
    max_score_age_s: float,
    tie_band: float = DEFAULT_TIE_BAND,
    gpus: int = 0,
    gpu_required: bool = False,
) -> Recommendation:
    """Say which region a launch would best go to, and why.

    scores: of one instance type, or those that need no type. gpus: how many GPUs must be free; a
    region known to have fewer is excluded, and one of which that isn't known says so.
    gpu_required: at least one, and a region of which that isn't known is excluded too. Other
    arguments and errors as rank_regions'.
    """
    names = tuple(regions)
    if not names:
        return Recommendation(outcome="no_regions", reason="no regions configured")
    ranked = report_regions(
        names,
        scores,
        default_region=default_region,
        now_s=now_s,
        max_score_age_s=max_score_age_s,
    )
    gpus = max(gpus, int(gpu_required))
    judged = [_judged_by_gpus(place, gpus, required=gpu_required) for place in ranked]
    eligible = [place for place in judged if place.excluded is None]
    ordered = (*eligible, *(place for place in judged if place.excluded is not None))
    if all(_check_failed(place) for place in ordered):
        return _no_region("all_failed", f"every check failed: {_causes(ordered)}", ordered)
    if not eligible:
        why = "; ".join(f"{place.region}: {place.excluded}" for place in ordered)
        return _no_region("no_gpus", f"no region has the GPUs: {why}", ordered)
    best = eligible[0]
    blind = is_blind(ranked)
    tied_n = 1 if blind else count_tied(eligible, tie_band)
    return Recommendation(
        outcome="no_telemetry" if blind else "recommended",
        reason=_blind_reason(best, default_region) if blind else "; ".join(best.reasons),
        region=best.region,
        score=best.score,
        telemetry_status=best.telemetry_status,
        errors=tuple(f"{best.region} {error}" for error in best.errors),
        equally_good=tuple(place.region for place in eligible[:tied_n]),
        regions=ordered,
    )


def _reasons(place: RankedRegion, score: ScoredRegion | None) -> tuple[str, ...]:
    """Return the sweep's reasons after what is only known now: how old they are."""
    if score is None or place.age_s is None:
        return ("no score yet",)
    if place.freshness == "fresh":
        return score.reasons or (f"score {score.score:g}",)
    minutes = abs(place.age_s) / 60
    when = "old" if place.age_s > 0 else "ahead of the clock"
    return (f"score is stale ({minutes:.0f} min {when})", *score.reasons)


def _judged_by_gpus(place: RegionReport, gpus: int, *, required: bool) -> RegionReport:
    """Exclude a region that lacks the GPUs; say so, or exclude it, if that isn't known."""
    if not gpus:
        return place
    wanted = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'}"
    free, total = (
        seen.counted if (seen := place.signals.get(signal)) is not None else None
        for signal in (FREE_GPUS, TOTAL_GPUS)
    )
    excluded = None
    if free is not None and free < gpus:
        excluded = f"{wanted} asked for, {free:.0f} free"
    elif free is None and total is not None and total < gpus:
        excluded = f"{wanted} asked for, {total:.0f} there"
    elif free is None and required:
        excluded = f"{wanted} required, and not known how many are free"
    elif free is None:
        reasons = ("not known how many GPUs are free", *place.reasons)
        return msgspec.structs.replace(place, reasons=reasons)
    return msgspec.structs.replace(place, excluded=excluded)


def _check_failed(place: RegionReport) -> bool:
    """Tell whether every attempt to read something of a region failed, and there was one."""
    statuses = {seen.status for seen in place.signals.values()}
    return (
        place.missing_scored_signals >= SCORED_TELEMETRY_SIGNALS
        and "ok" not in statuses
        and not statuses.isdisjoint({"failed", "refused", "stale"})
    )


def _causes(places: Sequence[RegionReport]) -> str:
    return "; ".join(f"{place.region}: {', '.join(place.errors)}" for place in places)


def _no_region(outcome: Outcome, reason: str, ordered: tuple[RegionReport, ...]) -> Recommendation:
    return Recommendation(
        outcome=outcome,
        reason=reason,
        errors=tuple(f"{place.region} {error}" for place in ordered for error in place.errors),
        regions=ordered,
    )


def _blind_reason(best: RegionReport, default_region: str) -> str:
    if best.region == default_region:
        return f"no telemetry anywhere: default region {default_region}"
    return f"no telemetry anywhere, and the default region {default_region} is excluded"
