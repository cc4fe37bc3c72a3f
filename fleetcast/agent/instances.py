"""The instances of this node: what state each is in, and the work that moves it on.

Memory changes first and the journal follows, so that two changes of one instance can't undo each
other; nobody is promised anything before the journal has it. The ledger is booked before the
journal and released after it, so that a host never holds more than its ledger allows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.journal import Entry, JournalUnwritable
from fleetcast.capacity import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from fleetcast.agent.drivers import Driver, Guest
    from fleetcast.agent.journal import Journal
    from fleetcast.agent.ledger import Ledger
    from fleetcast.messages import InstanceReport, InstanceState

_log = logging.getLogger(__name__)

_ALIVE: Final = frozenset({"pending", "running"})


class Instances:
    """All instances that this node holds or has held.

    now_s: epoch seconds. capacity_changed: called after every change of what is free.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        ledger: Ledger,
        driver: Driver,
        now_s: Callable[[], float],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._driver = driver
        self._now_s = now_s
        self._capacity_changed = capacity_changed
        self._entries: dict[str, Entry] = {}
        # Entries not promised yet, with what they fall back to; None: to nothing.
        self._unpromised: dict[str, Entry | None] = {}
        # The last piece of work begun for an instance; the next one waits for it.
        self._work: dict[str, asyncio.Task[None]] = {}

    async def restore(self) -> None:
        """Take up what the journal says, after a restart or a crash.

        Guests that are alive are booked whether they fit or not; work that the crash cut off
        (a boot, a termination) is done again.
        """
        alive = await self._driver.alive()
        for entry in await self._journal.entries():
            guest = entry.guest
            self._entries[guest.instance_id] = entry
            if entry.state == "terminated":
                continue
            self._ledger.adopt(guest.instance_id, _resources_of(guest))
            if entry.state == "shutting-down":
                self._start(guest.instance_id, self._destroy(guest.instance_id))
            elif entry.state == "pending" or guest.instance_id not in alive:
                self._start(guest.instance_id, self._boot(guest.instance_id))
        for instance_id in alive - self._entries.keys():
            _log.warning(
                "guest without a journal entry left alone", extra={"instance": instance_id}
            )
        self._capacity_changed()

    def get(self, instance_id: str) -> Entry | None:
        """Return what is known of an instance, also when it has been terminated."""
        return self._entries.get(instance_id)

    def reports(self, instance_ids: Iterable[str] | None = None) -> tuple[InstanceReport, ...]:
        """Return the reports of these instances that are known here, or of all."""
        ids = self._entries if instance_ids is None else dict.fromkeys(instance_ids)
        return tuple(self._entries[one].report() for one in ids if one in self._entries)

    @property
    def running_n(self) -> int:
        """How many instances run now."""
        return sum(entry.state == "running" for entry in self._entries.values())

    # --- launching -------------------------------------------------------------------------

    def reserve(self, guest: Guest) -> bool:
        """Book room for a new guest, in memory only. Return False if there is none."""
        if not self._ledger.reserve(guest.instance_id, _resources_of(guest)):
            return False
        self._unpromised[guest.instance_id] = None
        self._entries[guest.instance_id] = self._entry(guest, "pending")
        return True

    def raise_attempt(self, instance_id: str, attempt: int) -> None:
        """Hold an instance under a newer fencing number, in memory only."""
        entry = self._entries[instance_id]
        self._unpromised.setdefault(instance_id, entry)
        guest = msgspec.structs.replace(entry.guest, attempt=attempt)
        self._entries[instance_id] = msgspec.structs.replace(entry, guest=guest)

    async def promise(self) -> None:
        """Make everything reserved and raised durable. After this a launch may be accepted.

        Raises JournalUnwritable, and then none of it has happened.
        """
        before, self._unpromised = self._unpromised, {}
        try:
            await self._journal.write([self._entries[instance_id] for instance_id in before])
        except JournalUnwritable:
            for instance_id, entry in before.items():
                if entry is None:
                    del self._entries[instance_id]
                    self._ledger.release(instance_id)
                else:
                    self._entries[instance_id] = entry
            raise

    def boot(self, instance_ids: Iterable[str]) -> None:
        """Start booting promised guests, side by side, and return at once."""
        for instance_id in instance_ids:
            self._start(instance_id, self._boot(instance_id))

    async def _boot(self, instance_id: str) -> None:
        if self._entries[instance_id].state not in _ALIVE:
            return  # terminated before its boot began
        try:
            await self._driver.boot(self._entries[instance_id].guest)
        except BootFailed as failure:
            _log.error("boot failed", extra={"instance": instance_id, "why": str(failure)})
            await self._driver.destroy(instance_id)
            await self._end(instance_id, "Server.InternalError", str(failure))
            return
        entry = self._entries[instance_id]
        if entry.state == "pending":  # not terminated while it booted
            await self._record(self._entry(entry.guest, "running"))
            _log.info("instance running", extra={"instance": instance_id})

    # --- terminating -----------------------------------------------------------------------

    async def terminate(self, instance_ids: Iterable[str]) -> tuple[InstanceReport, ...]:
        """Begin terminating; return the reports of those held here. May be repeated.

        Raises JournalUnwritable, and then nothing is terminated.
        """
        held = [one for one in dict.fromkeys(instance_ids) if one in self._entries]
        beginning = {
            instance_id: self._entry(
                self._entries[instance_id].guest,
                "shutting-down",
                "Client.UserInitiatedShutdown",
                "User initiated shutdown",
            )
            for instance_id in held
            if self._entries[instance_id].state in _ALIVE
        }
        # Also when nothing begins: a repeat is answered only when the first one is on disk.
        try:
            await self._record(*beginning.values())
        except JournalUnwritable:
            self.boot(beginning)  # which a boot may have seen as ending, and left undone
            raise
        for instance_id in held:
            ending = self._entries[instance_id].state == "shutting-down"
            # Nothing in hand: the destruction failed, and a repeat tries it again.
            if ending and (instance_id in beginning or instance_id not in self._work):
                self._start(instance_id, self._destroy(instance_id))
        return self.reports(held)

    async def _destroy(self, instance_id: str) -> None:
        await self._driver.destroy(instance_id)
        entry = self._entries[instance_id]
        await self._end(instance_id, entry.state_reason_code, entry.state_reason_message)

    async def _end(self, instance_id: str, code: str | None, message: str | None) -> None:
        if self._entries[instance_id].state == "terminated":
            return  # its boot failed while its termination waited
        guest = self._entries[instance_id].guest
        # The user data and tags of a guest that is gone are nobody's business any more.
        guest = msgspec.structs.replace(guest, user_data_base64=None, tags={})
        await self._record(self._entry(guest, "terminated", code, message))
        self._ledger.release(instance_id)
        self._capacity_changed()
        _log.info("instance terminated", extra={"instance": instance_id, "reason": code})

    async def forget_terminated(self, before_s: float) -> None:
        """Forget the instances that were terminated before an epoch second, on disk too.

        Raises JournalUnwritable.
        """
        gone = [
            instance_id
            for instance_id, entry in self._entries.items()
            if entry.state == "terminated" and entry.changed_at_s < before_s
        ]
        await self._journal.forget(gone)
        for instance_id in gone:
            del self._entries[instance_id]

    # --- the work in hand ------------------------------------------------------------------

    async def idle(self) -> None:
        """Wait until no boot and no termination is under way."""
        while self._work:
            await asyncio.wait(self._work.values())

    def _start(self, instance_id: str, work: Coroutine[None, None, None]) -> None:
        before = self._work.get(instance_id)
        task = asyncio.create_task(self._after(before, instance_id, work))
        self._work[instance_id] = task
        task.add_done_callback(lambda done: self._finished(instance_id, done))

    async def _after(
        self,
        before: asyncio.Task[None] | None,
        instance_id: str,
        work: Coroutine[None, None, None],
    ) -> None:
        if before:
            await asyncio.wait([before])
        try:
            await work
        except Exception:  # noqa: BLE001 - the boundary of a task: nobody else would see it
            _log.exception("instance work failed", extra={"instance": instance_id})

    def _finished(self, instance_id: str, task: asyncio.Task[None]) -> None:
        if self._work.get(instance_id) is task:
            del self._work[instance_id]

    async def _record(self, *entries: Entry) -> None:
        before = {
            entry.guest.instance_id: self._entries[entry.guest.instance_id] for entry in entries
        }
        for entry in entries:
            self._entries[entry.guest.instance_id] = entry
        try:
            await self._journal.write(entries)
        except JournalUnwritable:
            for entry in entries:
                instance_id = entry.guest.instance_id
                if self._entries.get(instance_id) is entry:
                    self._entries[instance_id] = before[instance_id]
            raise

    def _entry(
        self,
        guest: Guest,
        state: InstanceState,
        code: str | None = None,
        message: str | None = None,
    ) -> Entry:
        return Entry(
            guest=guest,
            state=state,
            changed_at_s=self._now_s(),
            state_reason_code=code,
            state_reason_message=message,
        )


def _resources_of(guest: Guest) -> Resources:
    return Resources(vcpu=guest.vcpu, memory_mib=guest.memory_mib, gpus=guest.gpus)
