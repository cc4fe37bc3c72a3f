"""Instances that a launch takes on before it is sure of them, and gives up again.

A hold boots nothing: it waits for Commit until its lease ends, by this node's clock, and is then
given up. Whether a lease has ended is asked of the clock each time, so a Commit never wins by
the lapse being late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.journal import JournalUnwritable
from fleetcast.errors import FleetcastError
from fleetcast.messages import GIVEN_UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.entries import Entry
    from fleetcast.agent.guests import Guests
    from fleetcast.agent.instances import Instances
    from fleetcast.messages import AttemptRequest, InstanceReport, InstanceState

_log = logging.getLogger(__name__)

# So late the room of a hold that has lapsed is given back at most.
_LOOK_EVERY_S: Final = 0.5


class OrderExpired(FleetcastError):
    """An order of a launch that is undecided came too late: its launch may be decided by now."""


class Holds:
    """What the launches of this node's instances decide. now_ms: epoch milliseconds."""

    def __init__(
        self,
        *,
        instances: Instances,
        guests: Guests,
        now_ms: Callable[[], int],
    ) -> None:
        self._instances = instances
        self._guests = guests
        self._now_ms = now_ms

    async def commit(self, request: AttemptRequest) -> tuple[InstanceReport, ...]:
        """Boot those that are held under exactly this attempt.

        Returns the reports of those that live now, booted by this Commit or an earlier one.
        Raises OrderExpired, and JournalUnwritable: then none boots.
        """
        await self._instances.decided(request.instance_ids)
        self._check_in_time(request)
        now_ms = self._now_ms()
        committed = [
            msgspec.structs.replace(entry, held_until_ms=None)
            for entry in self._of_attempt(request)
            if entry.is_held and not entry.has_lapsed(now_ms)
        ]
        await self._guests.change(committed, request.instance_ids)
        return self._instances.reports(
            entry.guest.instance_id
            for entry in self._of_attempt(request)
            if not entry.is_held and not entry.has_ended
        )

    def _of_attempt(self, request: AttemptRequest) -> list[Entry]:
        return [
            entry
            for entry in self._instances.known(request.instance_ids)
            if entry.guest.launch_id == request.launch_id and entry.guest.attempt == request.attempt
        ]

    async def give_up(self, request: AttemptRequest, why: str) -> tuple[InstanceReport, ...]:
        """End what is held under this attempt or an older one, and fence all that are named.

        Returns the reports of those of the launch that are known. May be repeated.
        Raises OrderExpired, and JournalUnwritable: then nothing ends.
        """
        self._check_in_time(request)
        # At once: what is decided from now on is refused, and what is in hand is waited for.
        fences = self._instances.fence(request.instance_ids, request.attempt)
        await self._instances.decided(request.instance_ids)
        self._check_in_time(request)
        entries = [
            entry
            for entry in self._instances.known(request.instance_ids)
            if entry.guest.launch_id == request.launch_id
        ]
        ids = [entry.guest.instance_id for entry in entries]
        ending = [
            self._given_up(entry, why)
            for entry in entries
            if entry.guest.attempt <= request.attempt and not entry.has_ended
        ]
        await self._guests.change(ending, ids, fences)
        for entry in self._instances.known(ids):
            # It was ending by an order before this one, which then could not be written.
            if entry.guest.attempt <= request.attempt and not entry.has_ended:
                raise JournalUnwritable(f"the end of {entry.guest.instance_id} was not written")
        return self._instances.reports(ids)

    def _check_in_time(self, request: AttemptRequest) -> None:
        expires_at_ms = request.expires_at_ms
        if expires_at_ms is msgspec.UNSET:
            return
        late_ms = self._now_ms() - expires_at_ms
        if late_ms >= 0:
            raise OrderExpired(f"{request.launch_id}: the order expired {late_ms} ms ago")

    def _given_up(self, entry: Entry, why: str) -> Entry:
        # Nothing runs for a hold, and a guest that may run has to be destroyed first.
        state: InstanceState = "terminated" if entry.is_held else "shutting-down"
        ending = self._instances.moved(entry, state, GIVEN_UP, why)
        return msgspec.structs.replace(ending, given_up=True)

    # --- leases ----------------------------------------------------------------------------

    async def keep_lapsing(self) -> None:
        """Give up holds as their leases end, until cancelled."""
        while True:
            # A journal that can't be written has been reported. They count as lapsed all the same.
            with contextlib.suppress(JournalUnwritable):
                await self.lapse()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def lapse(self) -> None:
        """Give up the holds whose lease has ended. Raises JournalUnwritable."""
        now_ms = self._now_ms()
        lapsed = [
            entry.guest.instance_id for entry in self._instances.held() if entry.has_lapsed(now_ms)
        ]
        if not lapsed:
            return
        await self._instances.decided(lapsed)
        given_up = [
            self._given_up(entry, "not committed before its lease ended")
            for entry in self._instances.known(lapsed)
            if entry.has_lapsed(now_ms)
        ]
        if given_up:  # else what was lapsed has been committed or given up meanwhile
            await self._instances.record(given_up)
            _log.info("holds lapsed", extra={"instances": [entry.named() for entry in given_up]})
