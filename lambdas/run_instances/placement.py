"""The walk: region after region until one has launched what was wanted.

Owns the order of things between regions: what is placed counts when MinCount is reached; what is
held boots then; what falls short is given up before the next region is tried, under the next
attempt. What one answer means is region_fill's. Source: docs/launch-protocol.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from fleetcast.errors import (
    FleetcastError,
    InsufficientInstanceCapacity,
    RefusedByNode,
    ServiceUnavailable,
)
from fleetcast.launch_story import RegionEnd, RegionVerdict, shortened
from lambdas.run_instances.ask_log import AskLog
from lambdas.run_instances.region_fill import RegionFill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lambdas.claims import Placed
    from lambdas.run_instances.launch_request import Wanted
    from lambdas.run_instances.region_fill import Asking


# How often regions are tried that hold something, but not enough.
_ROUNDS: Final = 3
_PAUSE_S: Final = 0.3


class UnknownOutcome(FleetcastError):
    """The launch may have happened in a region that can't be heard now."""


class Walk:
    """One launch's walk over the regions.

    placed, log and verdicts tell what is held where and what happened, also after an error.
    """

    def __init__(self, wanted: Wanted, asking: Asking) -> None:
        self.placed: list[Placed] = []
        self.log = AskLog(began_s=asking.clock_s(), clock_s=asking.clock_s)
        self._verdicts: dict[str, RegionVerdict] = {}
        self._contested: list[str] = []
        self._wanted = wanted
        self._asking = asking
        self._attempt = 1

    @property
    def verdicts(self) -> list[RegionVerdict]:
        """How each region was left, in the order in which they were tried."""
        return list(self._verdicts.values())

    async def place(self, regions: Sequence[str]) -> list[Placed]:
        """Return at least min_count placed instances, all in one region.

        Raises InsufficientInstanceCapacity only if every region has said that nobody there has
        room; ServiceUnavailable if one could not be asked; UnknownOutcome if one may hold
        something; the EC2 error of a request that no node would take.
        """
        for _ in range(_ROUNDS):
            self._contested = []
            for region in regions:
                verdict = await self._try_in_time(region)
                self._verdicts[region] = verdict
                if verdict.end == "placed":
                    return self.placed
            if not self._contested:
                break
            # Launches that hold what the others lack would all be refused.
            await self._asking.sleep(self._pause_s())
            regions = self._contested
        raise self.refusal()

    def _pause_s(self) -> float:
        """Return how long to make way for others: for each launch another time."""
        lot = hashlib.blake2b(f"{self._wanted.launch_id} {self._attempt}".encode(), digest_size=4)
        return _PAUSE_S * (0.2 + int.from_bytes(lot.digest()) / 2**32)

    async def _try_in_time(self, region: str) -> RegionVerdict:
        try:
            return await self._try_region(region)
        except asyncio.CancelledError:
            why = "time ran out while it was asked"
            self._verdicts[region] = _left(region, "in_doubt", why)
            raise

    async def _try_region(self, region: str) -> RegionVerdict:
        fill = RegionFill(
            self._wanted, region, attempt=self._attempt, asking=self._asking, log=self.log
        )
        try:
            end, why = await fill.fill()
        except RefusedByNode as refused:
            self._attempt = fill.attempt
            in_doubt = await self._give_up(fill.placed, region, lapses=self._wanted.holds)
            if in_doubt or any(verdict.end == "in_doubt" for verdict in self.verdicts):
                why = in_doubt or refused.message
                self._verdicts[region] = _left(region, "in_doubt" if in_doubt else "not_asked", why)
                raise self.refusal() from refused
            raise
        self._attempt, self.placed = fill.attempt, fill.placed
        if self._wanted.holds:
            return await self._boot_held(region, end, why)
        if self._enough():
            return RegionVerdict(region=region, end="placed")
        return _left(region, end, why)

    def _enough(self) -> bool:
        return len(self.placed) >= self._wanted.min_count

    async def _boot_held(self, region: str, end: RegionEnd, why: str) -> RegionVerdict:
        """Commit what is held if it is enough, and give it up if not."""
        if not self._enough():
            if self.placed and end == "no_room":
                why = f"room for {len(self.placed)} only"
                self._contested.append(region)
            await self._give_up(self.placed, region, lapses=True)
            return _left(region, end, why)
        held_n, began_s = len(self.placed), self._asking.clock_s()
        self.placed, unanswered = await self._asking.claims.commit(self.placed)
        told = f"{len(self.placed)} of {held_n} boot, {len(unanswered)} have no answer"
        self._note(region, "Commit", began_s, held_n, detail=told)
        if self._enough():
            # Whatever these are by now, the launch goes without them.
            await self._asking.claims.release(unanswered)
            return RegionVerdict(region=region, end="placed")
        if in_doubt := await self._give_up([*self.placed, *unanswered], region, lapses=False):
            return _left(region, "in_doubt", in_doubt)
        return _left(region, "not_asked", told)

    async def _give_up(self, placed: Sequence[Placed], region: str, *, lapses: bool) -> str:
        """Have nodes give up what won't count. Return what remains in doubt, or "".

        lapses: it is only held, so that a node that doesn't confirm gives it up by itself.
        """
        self.placed = []
        if not placed:
            return ""
        began_s = self._asking.clock_s()
        unconfirmed = await self._asking.claims.release(placed)
        self._note(region, "Release", began_s, len(placed))
        self._attempt += 1  # what was held must never count again
        if not unconfirmed or lapses:
            return ""
        nodes = ", ".join(sorted({one.node for one in unconfirmed}))
        return f"node {nodes} has not confirmed giving up {len(unconfirmed)} instances"

    # --- the end ---------------------------------------------------------------------------

    def refusal(self) -> FleetcastError:
        """Return the error that the verdicts come to, none of which is `placed`."""
        wanted = f"{self._wanted.min_count} x {self._wanted.template.instance_type}"
        if self._wanted.zone:
            wanted += f" in zone {self._wanted.zone}"
        reasons = "; ".join(f"{verdict.region}: {verdict.why}" for verdict in self.verdicts)
        ends = {verdict.end for verdict in self.verdicts}
        if "in_doubt" in ends:
            return UnknownOutcome(reasons)
        if "not_asked" in ends:
            return ServiceUnavailable(
                f"Could not find out whether there is room for {wanted}: {reasons}. Retry with "
                f"the same ClientToken. (Launch {self._wanted.launch_id})"
            )
        return InsufficientInstanceCapacity(
            f"There is no room for {wanted} now: {reasons}. (Launch {self._wanted.launch_id})"
        )

    def _note(
        self,
        region: str,
        subject: str,
        began_s: float,
        count: int,
        *,
        detail: str = "",
    ) -> None:
        self.log.note(
            region,
            subject,
            "committed" if subject == "Commit" else "released",
            attempt=self._attempt,
            count=count,
            began_s=began_s,
            detail=detail,
        )


def _left(region: str, end: RegionEnd, why: str) -> RegionVerdict:
    return RegionVerdict(region=region, end=end, why=shortened(why) or "no node has room")
