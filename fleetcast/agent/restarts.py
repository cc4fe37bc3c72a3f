"""Guests that end without being told to: powered off from within, or crashed.

One that powers itself off follows its instance's shutdown behaviour. One that crashes is started
again, each time after a longer wait, and stopped when it has crashed too often. Its instance stays
`running` meanwhile, as EC2's does: its owner may stop or terminate it at any time.

Crashes are counted in the journal, so that a guest that takes its agent along is stopped too. What
ends while no agent is there counts only if the driver knows how it ended.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.journal import JournalUnwritable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fleetcast.agent.drivers import Driver, Guest, GuestEnd
    from fleetcast.agent.entries import Entry
    from fleetcast.agent.instances import Instances
    from fleetcast.messages import InstanceState

_log = logging.getLogger(__name__)

WINDOW_S: Final = 600
# Before the first, the second, … restart within the window; after the last one it is stopped.
DELAYS_S: Final = (1, 4, 16)
# An end that could not be written: the journal's disk may have room again.
_TRY_AGAIN_S: Final = 30.0


class EndedGuests:
    """The guests of one node that have ended by themselves.

    call_later: calls a function after so many seconds, as an event loop does. attend: has `see_to`
    called for instances, one call at a time for each. boot_again: boots a guest, and returns False
    if that was called off, since its instance is to run no more.
    """

    def __init__(
        self,
        *,
        instances: Instances,
        driver: Driver,
        call_later: Callable[[float, Callable[[], None]], object],
        attend: Callable[[Iterable[str]], None],
        boot_again: Callable[[Guest], Awaitable[bool]],
    ) -> None:
        self._instances = instances
        self._driver = driver
        self._call_later = call_later
        self._attend = attend
        self._boot_again = boot_again
        self._untended: dict[str, GuestEnd] = {}
        self._to_restart: set[str] = set()

    async def keep_following(self) -> None:
        """Hear of ends until cancelled."""
        while True:
            end = await self._driver.next_end()
            self._untended[end.instance_id] = end
            self._attend([end.instance_id])

    def forget(self, instance_id: str) -> None:
        """Let what has been begun for its instance since go before its end."""
        self._untended.pop(instance_id, None)
        self._to_restart.discard(instance_id)

    async def see_to(self, entry: Entry) -> bool:
        """Do what is due for a running instance. Return False if nothing was."""
        instance_id = entry.guest.instance_id
        if end := self._untended.pop(instance_id, None):
            self._to_restart.discard(instance_id)
            is_seen_to = (
                await self._powered_off(instance_id)
                if end.how == "powered off"
                else await self._crashed(instance_id, end.why, is_news=not entry.is_down)
            )
            if not is_seen_to:  # for whoever sees to the instance next; at the latest, then
                self._untended.setdefault(instance_id, end)
                self._call_later(_TRY_AGAIN_S, partial(self._attend, [instance_id]))
            return True
        if instance_id in self._to_restart:
            self._to_restart.discard(instance_id)
            await self._restart(entry)
            return True
        return entry.is_down

    async def _powered_off(self, instance_id: str) -> bool:
        entry = await self._running(instance_id)
        if not entry:
            return False
        ends = entry.guest.shutdown_behavior == "terminate"
        state: InstanceState = "shutting-down" if ends else "stopping"
        _log.info("instance powered itself off", extra={**entry.named(), "next": state})
        reason = ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown")
        return await self._record(self._instances.moved(entry, state, *reason))

    async def _crashed(self, instance_id: str, why: str, *, is_news: bool) -> bool:
        """Count it, unless the journal has it, and see to its restart."""
        entry = await self._running(instance_id)
        if not entry:
            return False
        if is_news:
            before, entry = entry, self._instances.crashed(entry, within_s=WINDOW_S)
            if not await self._record_or_note(before, entry):
                return False
        crashes = len(entry.crashed_at_s)
        told = {**entry.named(), "why": why, "crashes": crashes}
        if crashes > len(DELAYS_S):
            _log.error("instance crashed too often", extra=told)
            return await self._give_up(entry, why)
        delay_s = DELAYS_S[crashes - 1]
        _log.warning("instance crashed", extra={**told, "restart_in_s": delay_s})
        self._call_later(delay_s, partial(self._restart_is_due, entry))
        return True

    async def _give_up(self, entry: Entry, why: str) -> bool:
        crashed = f"{len(entry.crashed_at_s)} crashes within {WINDOW_S // 60} minutes"
        reason = ("Server.InternalError", f"{crashed}, the last one: {why}")
        return await self._record(self._instances.moved(entry, "stopping", *reason))

    def _restart_is_due(self, crashed: Entry) -> None:
        instance_id = crashed.guest.instance_id
        entry = self._instances.get(instance_id)
        # Whoever has stopped and started it, or was quicker, has done it already.
        if entry and entry.is_down and entry.crashed_at_s == crashed.crashed_at_s:
            self._to_restart.add(instance_id)
            self._attend([instance_id])

    async def _restart(self, entry: Entry) -> None:
        instance_id = entry.guest.instance_id
        try:
            if not await self._boot_again(entry.guest):
                return
        except BootFailed as failure:
            if not await self._crashed(instance_id, str(failure), is_news=True):
                self._to_restart.add(instance_id)
            return
        if restarted := await self._running(instance_id):
            _log.info("instance restarted", extra=restarted.named())
            await self._record_or_note(restarted, msgspec.structs.replace(restarted, is_down=False))

    async def _running(self, instance_id: str) -> Entry | None:
        """Return the entry, if its instance is to run and nothing is being decided about it."""
        await self._instances.decided([instance_id])
        entry = self._instances.get(instance_id)
        is_running = entry and entry.state == "running" and self._instances.is_settled(instance_id)
        return entry if is_running else None

    async def _record_or_note(self, before: Entry, after: Entry) -> bool:
        """Record a change; one that can't be written holds in memory: no guest crashes for ever.

        Return False if something else has been decided meanwhile: that goes before it.
        """
        instance_id = after.guest.instance_id
        if not await self._record(after) and self._instances.get(instance_id) is before:
            self._instances.note(after)
        return self._instances.get(instance_id) is after

    async def _record(self, entry: Entry) -> bool:
        """Record a change and what it asks for. Return False if it could not be written."""
        try:
            await self._instances.record([entry])
        except JournalUnwritable as problem:
            _log.critical("end not recorded", extra={**entry.named(), "why": str(problem)})
            return False
        self._attend([entry.guest.instance_id])
        return True
