"""The instances of this node: what state each is in, and the work that moves it on.

Every change is journaled before anybody is told of it. The ledger is booked before the journal
and released after it, so that a host never holds more than its ledger allows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.journal import Entry, JournalUnwritable
from fleetcast.capacity import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from fleetcast.agent.drivers import Driver, Guest
    from fleetcast.agent.journal import Journal
    from fleetcast.agent.ledger import Ledger
    from fleetcast.messages import InstanceReport, InstanceState

_log = logging.getLogger(__name__)


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
                self._start(guest.instance_id, self._boot(guest))
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
        ids = self._entries if instance_ids is None else instance_ids
        return tuple(self._entries[one].report() for one in ids if one in self._entries)

    # --- launching -------------------------------------------------------------------------

    def reserve(self, guest: Guest) -> bool:
        """Book room for a new guest, in memory only. Return False if there is none."""
        if not self._ledger.reserve(guest.instance_id, _resources_of(guest)):
            return False
        self._entries[guest.instance_id] = self._entry(guest, "pending")
        return True

    async def promise(self, guests: Sequence[Guest]) -> None:
        """Make reserved guests durable. After this a launch may be accepted.

        Raises JournalUnwritable, and then nothing is reserved any more.
        """
        try:
            await self._journal.write([self._entries[guest.instance_id] for guest in guests])
        except JournalUnwritable:
            for guest in guests:
                del self._entries[guest.instance_id]
                self._ledger.release(guest.instance_id)
            raise

    async def raise_attempt(self, instance_id: str, attempt: int) -> None:
        """Hold an instance under a newer fencing number. Raises JournalUnwritable."""
        entry = self._entries[instance_id]
        guest = msgspec.structs.replace(entry.guest, attempt=attempt)
        await self._record(msgspec.structs.replace(entry, guest=guest))

    def boot(self, guests: Iterable[Guest]) -> None:
        """Start booting promised guests, side by side, and return at once."""
        for guest in guests:
            self._start(guest.instance_id, self._boot(guest))

    async def _boot(self, guest: Guest) -> None:
        if self._entries[guest.instance_id].state not in {"pending", "running"}:
            return  # terminated before its boot began
        try:
            await self._driver.boot(guest)
        except BootFailed as failure:
            _log.error(
                "boot failed",
                extra={"instance": guest.instance_id, "why": str(failure)},
            )
            await self._driver.destroy(guest.instance_id)
            await self._end(guest.instance_id, "Server.InternalError", str(failure))
            return
        if self._entries[guest.instance_id].state == "pending":
            await self._record(self._entry(guest, "running"))
            _log.info("instance running", extra={"instance": guest.instance_id})

    # --- terminating -----------------------------------------------------------------------

    async def terminate(self, instance_ids: Sequence[str]) -> tuple[InstanceReport, ...]:
        """Begin terminating; return the reports of those held here. May be repeated.

        Raises JournalUnwritable, and then nothing is terminated.
        """
        beginning = [
            self._entry(
                self._entries[instance_id].guest,
                "shutting-down",
                "Client.UserInitiatedShutdown",
                "User initiated shutdown",
            )
            for instance_id in dict.fromkeys(instance_ids)
            if instance_id in self._entries
            and self._entries[instance_id].state not in {"shutting-down", "terminated"}
        ]
        if beginning:
            await self._record(*beginning)
        for entry in beginning:
            self._start(entry.guest.instance_id, self._destroy(entry.guest.instance_id))
        return self.reports(instance_ids)

    async def _destroy(self, instance_id: str) -> None:
        await self._driver.destroy(instance_id)
        entry = self._entries[instance_id]
        await self._end(instance_id, entry.state_reason_code, entry.state_reason_message)

    async def _end(self, instance_id: str, code: str | None, message: str | None) -> None:
        guest = self._entries[instance_id].guest
        # The user data and tags of a guest that is gone are nobody's business any more.
        guest = msgspec.structs.replace(guest, user_data_base64=None, tags={})
        await self._record(self._entry(guest, "terminated", code, message))
        self._ledger.release(instance_id)
        self._capacity_changed()
        _log.info("instance terminated", extra={"instance": instance_id, "reason": code})

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
        # Memory follows the disk: what was not written has not happened.
        await self._journal.write(entries)
        for entry in entries:
            self._entries[entry.guest.instance_id] = entry

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
