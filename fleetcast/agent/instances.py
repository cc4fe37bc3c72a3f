"""What this node holds and has held, in memory and in the journal, and the room it takes.

Memory changes first and the journal follows, so that two changes of one instance can't undo each
other; nobody is promised anything before the journal has it. The ledger is booked before the
journal and released after it, so that a host never holds more than its ledger allows.

What is still being promised isn't held yet: whoever asks about it waits until that is decided
(`decided`), and reports leave it out. What is still being written isn't acted on (`is_settled`),
and isn't taken on under another attempt.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from fleetcast.agent.entries import Entry
from fleetcast.agent.fences import Fences
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.agent.promises import Fallback, Promises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fleetcast.agent.capacity.ledger import Ledger
    from fleetcast.agent.drivers import Guest
    from fleetcast.agent.entries import Fence
    from fleetcast.agent.journal import Journal
    from fleetcast.messages import InstanceReport, InstanceState

_log = logging.getLogger(__name__)

# What has ended, and a fence, stay in the journal that long, so that a late request finds them
# and launches nothing.
REMEMBERED_S: Final = 86_400

Claim: TypeAlias = Literal["placed", "full", "refused"]


class _Writing:
    """Changes of one instance that are on their way to the disk. on_disk: what is there."""

    def __init__(self, on_disk: Entry) -> None:
        self.on_disk = on_disk
        self.writes_n = 0


class Instances:
    """All instances that this node holds or has held.

    now_s: epoch seconds. capacity_changed: called after every change of what is free.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        ledger: Ledger,
        now_s: Callable[[], float],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._now_s = now_s
        self._capacity_changed = capacity_changed
        self._entries: dict[str, Entry] = {}
        self._fences = Fences()
        self._held: set[str] = set()
        self._promises = Promises()
        self._being_written: dict[str, _Writing] = {}

    async def load(self) -> None:
        """Take up what the journal says, after a restart or a crash. Books nothing."""
        for entry in await self._journal.entries():
            self.note(entry)
        self._fences.load(await self._journal.fences())

    async def take_in(self, guests: Iterable[Guest]) -> list[Entry]:
        """Take up guests that run and that the journal doesn't know; return their entries.

        They are here whether the journal can be written or not. Books nothing.
        """
        entries = [
            Entry(guest=guest, state="running", changed_at_s=self._now_s(), has_run=True)
            for guest in guests
        ]
        for entry in entries:
            self.note(entry)
        if entries:
            with contextlib.suppress(JournalUnwritable):
                await self.record(entries)
        return entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, instance_id: str) -> Entry | None:
        """Return what is known of an instance, also when it has been terminated."""
        return self._entries.get(instance_id)

    def known(self, instance_ids: Iterable[str]) -> list[Entry]:
        """Return those of these instances that are known, each once."""
        ids = dict.fromkeys(instance_ids)
        return [self._entries[one] for one in ids if one in self._entries]

    def reports(self, instance_ids: Iterable[str] | None = None) -> tuple[InstanceReport, ...]:
        """Return the reports of these instances, or of all: of those that are promised."""
        entries = self._entries.values() if instance_ids is None else self.known(instance_ids)
        if not self._promises:
            return tuple(entry.report() for entry in entries)
        promised = (self._promises.before(entry) for entry in entries)
        return tuple(entry.report() for entry in promised if entry)

    @property
    def running_n(self) -> int:
        """How many instances run now."""
        return sum(entry.state == "running" for entry in self._entries.values())

    def held(self) -> list[Entry]:
        """Return those that wait for Commit."""
        return self.known(self._held)

    # --- promising -------------------------------------------------------------------------

    def claim(self, guest: Guest, *, held_until_ms: int | None, may_book: bool = True) -> Claim:
        """Take an instance of a launch request on, in memory only, until it is promised.

        It must not be one of those that are undecided.
        may_book: whether to look for room. placed: it is here, new or from before. full: there is
        no room. refused: under this attempt it is not to be here.
        """
        entry = self._entries.get(guest.instance_id)
        if self._is_barred(guest, entry):
            return "refused"
        if entry is None or entry.has_ended:
            return self._reserve(guest, held_until_ms) if may_book else "full"
        if guest.attempt > entry.guest.attempt:
            self._take_over(entry, guest.attempt, held_until_ms)
        return "placed"

    def _is_barred(self, guest: Guest, entry: Entry | None) -> bool:
        if self._fences.bar(guest.instance_id, guest.attempt):
            return True
        if entry is None:
            return False
        if entry.guest.launch_id != guest.launch_id or guest.attempt < entry.guest.attempt:
            return True
        is_newer = guest.attempt > entry.guest.attempt
        if is_newer and guest.instance_id in self._being_written:
            return True  # what it would go back to isn't known yet
        if entry.has_ended:
            may_come_back = entry.given_up and entry.state == "terminated"
            return not (may_come_back and is_newer)
        return entry.has_lapsed(self._now_s() * 1000) and not is_newer

    def _reserve(self, guest: Guest, held_until_ms: int | None) -> Claim:
        instance_id = guest.instance_id
        if not self._ledger.reserve(instance_id, guest.uses):
            return "full"
        fallback = Fallback(self._entries.get(instance_id), is_booked=True)
        self._promises.claim(instance_id, fallback)
        self.note(
            Entry(
                guest=guest,
                state="pending",
                changed_at_s=self._now_s(),
                held_until_ms=held_until_ms,
            )
        )
        return "placed"

    def _take_over(self, entry: Entry, attempt: int, held_until_ms: int | None) -> None:
        """Hold an instance under a newer attempt, and only what still waits on a new lease."""
        self._promises.claim(entry.guest.instance_id, Fallback(entry, is_booked=False))
        self.note(
            msgspec.structs.replace(
                entry,
                guest=msgspec.structs.replace(entry.guest, attempt=attempt),
                held_until_ms=held_until_ms if entry.is_held else None,
            )
        )

    def are_undecided(self, instance_ids: Iterable[str]) -> bool:
        """Say whether one of these is claimed, and not promised yet."""
        return self._promises.concern(instance_ids)

    async def promise(self) -> None:
        """Make everything claimed since the last call durable: it may be accepted after this.

        Raises JournalUnwritable, and then none of it has happened.
        """
        promise = self._promises.take_next()
        if not promise.fallbacks:
            return
        try:
            await self._write([self._entries[instance_id] for instance_id in promise.fallbacks])
        except JournalUnwritable:
            for instance_id, fallback in promise.fallbacks.items():
                self._fall_back(instance_id, fallback)
            raise
        finally:
            self._promises.decide(promise)

    def _fall_back(self, instance_id: str, fallback: Fallback) -> None:
        before = fallback.entry
        if before is None:
            del self._entries[instance_id]
            self._held.discard(instance_id)
        elif fallback.is_booked:
            self.note(before)
        else:  # it was taken over, and its boot may have gone on meanwhile
            self.note(
                msgspec.structs.replace(
                    self._entries[instance_id],
                    guest=before.guest,
                    held_until_ms=before.held_until_ms,
                )
            )
        if fallback.is_booked:
            self._ledger.release(instance_id)

    async def decided(self, instance_ids: Iterable[str]) -> None:
        """Wait until none of these is still being promised."""
        await self._promises.decided(instance_ids)

    async def locate(self, launch_id: str) -> tuple[InstanceReport, ...]:
        """Return the reports of all instances of a launch, once those in hand are decided."""
        ids = [entry.guest.instance_id for entry in self if entry.guest.launch_id == launch_id]
        await self.decided(ids)
        return self.reports(ids)

    # --- changing --------------------------------------------------------------------------

    def note(self, entry: Entry) -> None:
        """Change an instance in memory only."""
        instance_id = entry.guest.instance_id
        self._entries[instance_id] = entry
        if entry.is_held:
            self._held.add(instance_id)
        else:
            self._held.discard(instance_id)

    async def record(self, entries: Sequence[Entry], fences: Sequence[Fence] = ()) -> None:
        """Change instances in memory at once, and on disk when this returns.

        What it changes to without using anything gives its room back then. Also with nothing to
        change it returns only when all that was recorded before is on disk.
        Raises JournalUnwritable, and then it has not happened.
        """
        for entry in entries:
            instance_id = entry.guest.instance_id
            writing = self._being_written.setdefault(
                instance_id, _Writing(self._entries[instance_id])
            )
            writing.writes_n += 1
            self.note(entry)
        try:
            await self._write(entries, fences)
        except JournalUnwritable:
            for entry in entries:
                if self._is_current(entry):
                    self._go_back(self._being_written[entry.guest.instance_id].on_disk)
            raise
        else:
            for entry in entries:
                self._being_written[entry.guest.instance_id].on_disk = entry
        finally:
            for entry in entries:
                self._has_been_written(entry.guest.instance_id)
        for entry in entries:
            # One that has come back meanwhile goes on using what was booked for it.
            if self._is_current(entry):
                self._free_if_over(entry)

    def _go_back(self, on_disk: Entry) -> None:
        self.note(on_disk)
        # What could not be written may have been begun before this was on disk.
        self._free_if_over(on_disk)

    def _free_if_over(self, entry: Entry) -> None:
        if entry.state in {"stopped", "terminated"}:
            self.free(entry.guest.instance_id)

    def _has_been_written(self, instance_id: str) -> None:
        writing = self._being_written[instance_id]
        writing.writes_n -= 1
        if not writing.writes_n:
            del self._being_written[instance_id]

    def is_settled(self, instance_id: str) -> bool:
        """Say whether what memory says of an instance is on disk, so that it may be acted on."""
        return instance_id not in self._being_written and instance_id not in self._promises

    def book(self, entry: Entry) -> bool:
        """Book room for a stopped instance again. Return False if there is none."""
        if not self._ledger.reserve(entry.guest.instance_id, entry.guest.uses):
            return False
        self._capacity_changed()
        return True

    def free(self, instance_id: str) -> None:
        """Give back what an instance used."""
        if self._ledger.release(instance_id):
            self._capacity_changed()

    def _is_current(self, entry: Entry) -> bool:
        return self._entries.get(entry.guest.instance_id) is entry

    def fence(self, instance_ids: Iterable[str], attempt: int) -> list[Fence]:
        """Accept these under no such attempt or older from now on; return what to record of it."""
        return self._fences.set(instance_ids, attempt, now_s=self._now_s())

    def moved(
        self,
        entry: Entry,
        state: InstanceState,
        code: str | None = None,
        message: str | None = None,
    ) -> Entry:
        """Return the entry in another state, no longer held; its crashes count until it stops."""
        guest = entry.guest
        if state == "terminated":
            # The user data and tags of a guest that is gone are nobody's business any more.
            guest = msgspec.structs.replace(guest, user_data_base64=None, tags={})
        return msgspec.structs.replace(
            entry,
            guest=guest,
            state=state,
            changed_at_s=self._now_s(),
            state_reason_code=code,
            state_reason_message=message,
            held_until_ms=None,
            crashed_at_s=() if state in {"stopped", "terminated"} else entry.crashed_at_s,
            is_down=False,
        )

    def crashed(self, entry: Entry, *, within_s: float) -> Entry:
        """Return the entry with one more crash, now; those before are forgotten after within_s."""
        now_s = self._now_s()
        # A clock that has been set back makes none of them older.
        of_late = (at_s for at_s in entry.crashed_at_s if abs(now_s - at_s) < within_s)
        return msgspec.structs.replace(entry, crashed_at_s=(*of_late, now_s), is_down=True)

    async def forget(self) -> None:
        """Forget what ended, and fences that were set, long ago. Raises JournalUnwritable."""
        before_s = self._now_s() - REMEMBERED_S
        gone = [
            entry for entry in self if entry.state == "terminated" and entry.changed_at_s < before_s
        ]
        ids = [entry.guest.instance_id for entry in gone]
        await self._journal.forget(ids, fences_before_s=before_s)
        for entry in gone:
            if self._is_current(entry):
                del self._entries[entry.guest.instance_id]
        self._fences.forget(before_s)

    async def _write(self, entries: Sequence[Entry], fences: Sequence[Fence] = ()) -> None:
        try:
            await self._journal.write(entries, fences)
        except JournalUnwritable as problem:
            # Until it is restarted: what can't be written can't be promised.
            if self._ledger.close("journal unwritable", str(problem)):
                _log.critical(
                    "journal unwritable: taking no more launches", extra={"why": str(problem)}
                )
                self._capacity_changed()
            raise
