"""Which launches of the past would have gone elsewhere under other weights. Pure."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from fleetcast.selection import RankedRegion, RegionScore, is_blind, rank_regions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetcast.cli.rescored import RescoredRegion
    from fleetcast.launch_history import PastLaunch


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """How many launches would have gone from the region that took them to another one."""

    from_region: str
    to_region: str
    launches: int


class LaunchesReplay(msgspec.Struct, frozen=True, kw_only=True):
    """The launches, placed again.

    placed: how many a region took; elsewhere: how many of them another one would have taken, by
    moves, most first. indifferent: how many of them no weights could have moved: they were pinned
    to a place, or of a type without a score of its own, or no region's load was known. unplaced:
    how many more no region is known to have taken.
    """

    placed: int
    elsewhere: int
    indifferent: int
    unplaced: int
    moves: tuple[Move, ...]


class MovedLaunches:
    """Compares where launches went with where they would have gone.

    A launch is ranked by its own id and by the newest scores there were when it was made. (A
    sweep counts from when it began: it wrote its scores some seconds later.) Regions that had
    been asked before the one that took it had no room; of every other region it is assumed that
    it had. max_score_age_s, tie_band: as rank_regions has them.
    """

    def __init__(
        self, launches: Iterable[PastLaunch], *, max_score_age_s: float, tie_band: float
    ) -> None:
        self._due = deque(sorted(launches, key=lambda launch: launch.launched_at_s))
        self._max_score_age_s = max_score_age_s
        self._tie_band = tie_band
        self._in_force: dict[str, RescoredRegion] = {}
        self._moves: Counter[tuple[str, str]] = Counter()
        self._placed = self._indifferent = self._unplaced = 0

    def add(self, sweep: Iterable[RescoredRegion]) -> None:
        """Take one sweep's regions in; none may be older than those before."""
        for one in sweep:
            self._place_until(one.computed_at_s)
            self._in_force[one.region] = one

    def result(self) -> LaunchesReplay:
        """Return what was found, once all sweeps are in."""
        self._place_until(float("inf"))
        moves = sorted(self._moves.items(), key=lambda move: (-move[1], move[0]))
        return LaunchesReplay(
            placed=self._placed,
            elsewhere=self._moves.total(),
            indifferent=self._indifferent,
            unplaced=self._unplaced,
            moves=tuple(
                Move(from_region=before, to_region=after, launches=launches)
                for (before, after), launches in moves
            ),
        )

    def _place_until(self, at_s: float) -> None:
        while self._due and self._due[0].launched_at_s < at_s:
            launch = self._due.popleft()
            if launch.region is None:
                self._unplaced += 1
                continue
            self._placed += 1
            after = None if launch.pinned else self._region_after(launch, launch.region)
            if after is None:
                self._indifferent += 1
            elif after != launch.region:
                self._moves[launch.region, after] += 1

    def _region_after(self, launch: PastLaunch, took: str) -> str | None:
        """Return the region it would have gone to; None if the weights had no say."""
        scores = {
            region: one.before[launch.instance_type]
            for region, one in self._in_force.items()
            if launch.instance_type in one.before
        }
        if not scores:
            return None
        before = self._rank(launch, took, scores)
        if is_blind(before):
            return None  # the default region came first, and would again
        other_scores = {
            region: self._in_force[region].after[launch.instance_type] for region in scores
        }
        after = self._rank(launch, took, other_scores)
        names = [place.region for place in before]
        without_room = set(names[: names.index(took)])
        return next(place.region for place in after if place.region not in without_room)

    def _rank(
        self, launch: PastLaunch, took: str, scores: Mapping[str, RegionScore]
    ) -> list[RankedRegion]:
        return rank_regions(
            {*self._in_force, took},
            scores,
            default_region=took,  # it matters only to a blind ranking, which isn't looked at
            launch_id=launch.reservation_id,
            now_s=launch.launched_at_s,
            max_score_age_s=self._max_score_age_s,
            tie_band=self._tie_band,
        )
