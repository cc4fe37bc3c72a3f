"""What an instance's owner asks: could it be; and then: terminate, stop, start, reboot, console.

An instance never leaves its node: a stop gives its room back, and a start needs it again. Each
may be repeated, and is answered when it is on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from fleetcast.agent.drivers import ClientFault, NodeFault
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.messages import LaunchFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetcast.agent.drivers import ConsoleOutput
    from fleetcast.agent.entries import Entry
    from fleetcast.agent.guests import Guests
    from fleetcast.agent.instances import Instances
    from fleetcast.instance_types import InstanceType
    from fleetcast.messages import InstanceReport, LaunchRequest


_BY_ITS_OWNER: Final = ("Client.UserInitiatedShutdown", "User initiated shutdown")


class Outcome(NamedTuple):
    """The reports of what was named and is here; of what was not done, why."""

    reports: tuple[InstanceReport, ...]
    refused: dict[str, Literal["full", "state"]]


class OwnerActions:
    """Moves instances as their owners say. All raise JournalUnwritable: then nothing is done."""

    def __init__(self, *, instances: Instances, guests: Guests) -> None:
        self._instances = instances
        self._guests = guests

    def fault_of(self, request: LaunchRequest, instance_type: InstanceType) -> LaunchFault | None:
        """Return why this node would refuse that, whatever room it has; None: it would not."""
        try:
            self._guests.driver.check(request, instance_type)
        except ClientFault as fault:
            return LaunchFault(code=fault.code, message=str(fault))
        except NodeFault as fault:
            return LaunchFault(code=None, message=str(fault))
        return None

    async def terminate(self, instance_ids: Iterable[str]) -> tuple[InstanceReport, ...]:
        """Begin terminating; return the reports of those held here."""
        entries = await self._known(instance_ids)
        beginning = [self._terminating(entry) for entry in entries if not entry.has_ended]
        # What was given up may come back under a newer attempt; what its owner has ended may not.
        claiming = [
            msgspec.structs.replace(entry, given_up=False)
            for entry in entries
            if entry.has_ended and entry.given_up
        ]
        ids = [entry.guest.instance_id for entry in entries]
        await self._guests.change([*beginning, *claiming], ids)
        return self._instances.reports(ids)

    def _terminating(self, entry: Entry) -> Entry:
        return self._instances.moved(entry, "shutting-down", *_BY_ITS_OWNER)

    async def stop(
        self, instance_ids: Iterable[str], *, reason: tuple[str, str] = _BY_ITS_OWNER
    ) -> Outcome:
        """Begin stopping what runs. reason: the state reason, code and message."""
        entries = await self._known(instance_ids)
        beginning = [self._stopping(entry, reason) for entry in entries if entry.state == "running"]
        refused = [
            entry for entry in entries if entry.state not in {"running", "stopping", "stopped"}
        ]
        await self._guests.change(beginning, [entry.guest.instance_id for entry in entries])
        return self._outcome(entries, wrong_state=refused)

    def _stopping(self, entry: Entry, reason: tuple[str, str]) -> Entry:
        stopping = self._instances.moved(entry, "stopping", *reason)
        return msgspec.structs.replace(stopping, has_run=True)

    async def start(self, instance_ids: Iterable[str]) -> Outcome:
        """Begin starting what is stopped, if there is room for it again."""
        entries = await self._known(instance_ids)
        stopped = [entry for entry in entries if entry.state == "stopped"]
        booked = [entry for entry in stopped if self._instances.book(entry)]
        refused = [
            entry
            for entry in entries
            if entry.is_held or entry.state not in {"pending", "running", "stopped"}
        ]
        starting = [self._instances.moved(entry, "pending") for entry in booked]
        try:
            await self._guests.change(starting, [entry.guest.instance_id for entry in entries])
        except JournalUnwritable:
            for entry in booked:
                if self._instances.get(entry.guest.instance_id) is entry:
                    self._instances.free(entry.guest.instance_id)
            raise
        full = [entry for entry in stopped if entry not in booked]
        return self._outcome(entries, wrong_state=refused, full=full)

    async def reboot(self, instance_ids: Iterable[str]) -> Outcome:
        """Begin rebooting what runs."""
        entries = await self._known(instance_ids)
        running = [entry for entry in entries if entry.state == "running"]
        self._guests.reboot(entry.guest.instance_id for entry in running)
        return self._outcome(
            entries, wrong_state=[entry for entry in entries if entry.state != "running"]
        )

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the end of an instance's console; None if it has none."""
        return await self._guests.console_output(instance_id)

    async def _known(self, instance_ids: Iterable[str]) -> list[Entry]:
        ids = tuple(instance_ids)
        await self._instances.decided(ids)
        return self._instances.known(ids)

    def _outcome(
        self,
        entries: Iterable[Entry],
        *,
        wrong_state: Iterable[Entry],
        full: Iterable[Entry] = (),
    ) -> Outcome:
        refused: dict[str, Literal["full", "state"]] = {}
        refused |= {entry.guest.instance_id: "state" for entry in wrong_state}
        refused |= {entry.guest.instance_id: "full" for entry in full}
        return Outcome(
            self._instances.reports(entry.guest.instance_id for entry in entries), refused
        )
