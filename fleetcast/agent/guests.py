"""What runs on this node: brings each guest to where its instance's entry says it should be.

pending: it boots. stopping: it is stopped. shutting-down: it is destroyed. One thing at a time for
each guest, and after every wait the entry is looked at again: what has been decided meanwhile
goes before what was begun.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.agent.restarts import EndedGuests

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from fleetcast.agent.capacity.ledger import Ledger
    from fleetcast.agent.drivers import ConsoleOutput, Driver, Guest
    from fleetcast.agent.entries import Entry, Fence
    from fleetcast.agent.instances import Instances
    from fleetcast.agent.set_aside import SetAside
    from fleetcast.messages import InstanceState

_log = logging.getLogger(__name__)

# What has failed for no reason that anybody foresaw: a disk that can't be read, say.
_TRY_AGAIN_S: Final = 30.0


class Guests:
    """The guests of this node's instances.

    call_later: calls a function after so many seconds, as an event loop does.
    """

    def __init__(
        self,
        *,
        instances: Instances,
        ledger: Ledger,
        driver: Driver,
        set_aside: SetAside,
        call_later: Callable[[float, Callable[[], None]], object],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._instances = instances
        self._ledger = ledger
        self._driver = driver
        self._set_aside = set_aside
        self._capacity_changed = capacity_changed
        self._work: dict[str, asyncio.Task[None]] = {}
        # Whose entry has changed since their work began; and who is to be rebooted.
        self._due: set[str] = set()
        self._to_reboot: set[str] = set()
        # In which state there is a point in what is under way; and whose is to go no further.
        self._only_in: dict[str, InstanceState] = {}
        self._called_off: set[str] = set()
        self._call_later = call_later
        self._untold: list[Entry] = []
        self._ended = EndedGuests(
            instances=instances,
            driver=driver,
            call_later=call_later,
            attend=self.attend,
            boot_again=partial(self._boot_while, "running"),
        )

    async def restore(self) -> None:
        """Take up what the journal says, after a restart or a crash.

        Guests that are alive are booked whether they fit or not; work that the crash cut off
        (a boot, a stop, an end) is done again.
        """
        await self._instances.load()
        alive = await self._driver.alive()
        for guest in alive.values():
            self._ledger.adopt(guest.instance_id, guest.uses)
        for entry in list(self._instances):
            self._restore(entry, is_alive=entry.guest.instance_id in alive)
        unknown = [guest for one, guest in alive.items() if self._instances.get(one) is None]
        for entry in await self._instances.take_in(unknown):
            # Whether it is to be here is reconcile's to know.
            _log.warning("guest that the journal doesn't know taken in", extra=entry.named())
        self._capacity_changed()

    def _restore(self, entry: Entry, *, is_alive: bool) -> None:
        instance_id = entry.guest.instance_id
        # A guest that is down uses nothing, unless it is to boot.
        if entry.state in {"pending", "running"}:
            self._ledger.adopt(instance_id, entry.guest.uses)
        match entry.state:
            case "pending" | "running":
                # That it runs is the driver's to know, and isn't written down.
                state: InstanceState = "running" if is_alive else "pending"
                # Nor whether it has run before: what its owner may have on it must be kept.
                has_run = not entry.is_held
                self._instances.note(msgspec.structs.replace(entry, state=state, has_run=has_run))
                self.attend([instance_id])
            case "stopping" | "shutting-down":
                self.attend([instance_id])
            case "stopped" | "terminated" if is_alive:
                self._end_again(entry)

    def _end_again(self, entry: Entry) -> None:
        """End a guest that runs though the journal says that it has ended."""
        _log.error("guest runs that has ended", extra={**entry.named(), "state": entry.state})
        state: InstanceState = "stopping" if entry.state == "stopped" else "shutting-down"
        reason = (entry.state_reason_code, entry.state_reason_message)
        self._instances.note(self._instances.moved(entry, state, *reason))
        self.attend([entry.guest.instance_id])

    # --- beginning -------------------------------------------------------------------------

    def attend(self, instance_ids: Iterable[str]) -> None:
        """See to what these instances' states ask for, side by side, and return at once."""
        for instance_id in instance_ids:
            self._due.add(instance_id)
            if instance_id not in self._work:
                self._work[instance_id] = asyncio.create_task(self._attend(instance_id))
            elif self._is_overtaken(instance_id):
                # It may be waiting for its image, or for a guest that ignores that it is to stop.
                del self._only_in[instance_id]
                self._called_off.add(instance_id)
                self._work[instance_id].cancel()

    async def change(
        self,
        entries: Sequence[Entry],
        instance_ids: Iterable[str],
        fences: Sequence[Fence] = (),
    ) -> None:
        """Record changes, then see to what these instances' states ask for.

        Also when there is nothing to change: what failed before is tried again.
        Raises JournalUnwritable, and then nothing has changed.
        """
        ids = tuple(instance_ids)
        try:
            await self._instances.record(entries, fences)
        except JournalUnwritable:
            self.attend(ids)  # a boot may have seen its guest as ending, and left it alone
            raise
        if entries:
            told = [entry.named() | {"state": entry.state} for entry in entries]
            _log.info("instances on their way", extra={"instances": told})
        self.attend(ids)

    def reboot(self, instance_ids: Iterable[str]) -> None:
        """Begin to reboot those that run, and return at once."""
        ids = tuple(instance_ids)
        self._to_reboot.update(ids)
        self.attend(ids)

    @property
    def driver(self) -> Driver:
        """What runs them; for questions about guests that are not here yet."""
        return self._driver

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the end of a guest's console; None if it has none."""
        return await self._driver.console_output(instance_id)

    @property
    def at_work(self) -> list[str]:
        """The ids of the instances for whose guests something is under way."""
        return list(self._work)

    async def idle(self) -> None:
        """Wait until nothing is under way for any guest."""
        while self._work:
            await asyncio.wait(self._work.values())

    async def keep_following_ends(self) -> None:
        """See to guests that end by themselves, until cancelled."""
        await self._ended.keep_following()

    # --- the work --------------------------------------------------------------------------

    async def _attend(self, instance_id: str) -> None:
        try:
            while instance_id in self._due:
                self._due.discard(instance_id)
                await self._move(instance_id)
        except Exception:  # noqa: BLE001 - the boundary of a task: nobody else would see it
            _log.exception("instance work failed", extra={"instance": instance_id})
            self._call_later(_TRY_AGAIN_S, partial(self.attend, [instance_id]))
        finally:
            self._due.discard(instance_id)
            del self._work[instance_id]

    async def _move(self, instance_id: str) -> None:
        entry = self._instances.get(instance_id)
        if entry is None:
            self._ended.forget(instance_id)
            return
        if not self._instances.is_settled(instance_id):
            return  # who changes it sees to it afterwards
        if entry.state != "running":
            self._to_reboot.discard(instance_id)  # what was begun since goes before them
            self._ended.forget(instance_id)
        match entry.state:
            case "pending":
                await self._boot(entry)
            case "running":
                if await self._ended.see_to(entry):
                    self._to_reboot.discard(instance_id)  # it starts anew anyway
                await self._reboot(entry)
            case "stopping":
                if await self._while_in("stopping", instance_id, self._driver.stop(instance_id)):
                    await self._finish(instance_id, "stopping", "stopped")
            case "shutting-down":
                await self._driver.destroy(instance_id)
                await self._finish(instance_id, "shutting-down", "terminated")

    async def _boot(self, entry: Entry) -> None:
        if entry.is_held:
            return
        try:
            if not await self._boot_while("pending", entry.guest):
                return
        except BootFailed as failure:
            await self._boot_failed(entry, str(failure))
            return
        self._set_aside.boot_succeeded()
        if booted := self._in_state(entry.guest.instance_id, "pending"):  # not ended meanwhile
            self._instances.note(self._instances.moved(booted, "running"))
            self._tell_running(booted)

    async def _boot_while(self, state: InstanceState, guest: Guest) -> bool:
        return await self._while_in(state, guest.instance_id, self._driver.boot(guest))

    async def _while_in(
        self, state: InstanceState, instance_id: str, work: Coroutine[object, object, None]
    ) -> bool:
        """Do what has a point only in that state. Return False if it was called off."""
        self._only_in[instance_id] = state
        try:
            await work
        except asyncio.CancelledError:
            if instance_id not in self._called_off:
                raise
            self._go_on_after_calling_off()
            return False
        finally:
            self._only_in.pop(instance_id, None)
            self._called_off.discard(instance_id)
        return True

    def _is_overtaken(self, instance_id: str) -> bool:
        state = self._only_in.get(instance_id)
        return state is not None and not self._in_state(instance_id, state)

    def _go_on_after_calling_off(self) -> None:
        """Take back that this task was cancelled: only what was under way in it was meant."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - each boot is in one
        task.uncancel()

    def _tell_running(self, entry: Entry) -> None:
        """Log it, in one line with all others that come up in the same moment."""
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._log_running)
        self._untold.append(entry)

    def _log_running(self) -> None:
        told = [entry.named() for entry in self._untold]
        _log.info("instances running", extra={"instances": told})
        self._untold = []

    async def _boot_failed(self, tried: Entry, why: str) -> None:
        instance_id = tried.guest.instance_id
        _log.error("boot failed", extra={**tried.named(), "why": why})
        self._set_aside.boot_failed(why)
        entry = self._in_state(instance_id, "pending")
        if not entry:
            return  # it is to end anyway
        if entry.has_run:  # what its owner has on it stays
            await self._driver.stop(instance_id)
        else:
            await self._driver.destroy(instance_id)
        await self._instances.decided([instance_id])
        if entry := self._in_state(instance_id, "pending"):
            state: InstanceState = "stopped" if entry.has_run else "terminated"
            await self._instances.record(
                [self._instances.moved(entry, state, "Server.InternalError", why)]
            )

    async def _reboot(self, entry: Entry) -> None:
        instance_id = entry.guest.instance_id
        if instance_id in self._to_reboot:
            self._to_reboot.discard(instance_id)
            await self._driver.reboot(instance_id)
            _log.info("instance rebooted", extra=entry.named())

    async def _finish(self, instance_id: str, state: InstanceState, end: InstanceState) -> None:
        await self._instances.decided([instance_id])
        entry = self._in_state(instance_id, state)
        if not entry:
            return  # it was stopped, and is to end
        code, message = entry.state_reason_code, entry.state_reason_message
        await self._instances.record([self._instances.moved(entry, end, code, message)])
        _log.info(f"instance {end}", extra={**entry.named(), "reason": code})

    def _in_state(self, instance_id: str, state: InstanceState) -> Entry | None:
        entry = self._instances.get(instance_id)
        return entry if entry and entry.state == state else None
