"""Keeps the ledger in step with what its host really has."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fleetcast.agent.capacity.host_capacity import (
    host_capacity,
    simulated_capacity,
    taken_disk_mib,
    withheld_mib,
)
from fleetcast.capacity import Resources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fleetcast.agent.capacity.host import HostState
    from fleetcast.agent.capacity.ledger import Ledger
    from fleetcast.agent.capacity.settings import CapacitySettings
    from fleetcast.agent.drivers import GuestUse

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0


class CapacityWatch:
    """Looks at one host. state: reads it; raises OSError.

    is_simulated: its guests take nothing of it, so it is looked at once, at the start. gpus: those
    that it can give to guests.
    """

    def __init__(
        self,
        settings: CapacitySettings,
        state: Callable[[], HostState],
        *,
        is_simulated: bool,
        gpus: int,
    ) -> None:
        self._settings = settings
        self._state = state
        self._is_simulated = is_simulated
        self._gpus = gpus
        self._lacked = False

    def total(self) -> Resources:
        """Return what instances may use of the host. Raises OSError."""
        if self._is_simulated:
            return simulated_capacity(self._settings, self._state())
        return host_capacity(self._settings, self._state(), gpus=self._gpus)

    async def keep_looking(
        self,
        ledger: Ledger,
        *,
        taken: Callable[[], Awaitable[Mapping[str, GuestUse]]],
        capacity_changed: Callable[[], None],
    ) -> None:
        """Look for ever, and have the ledger follow.

        taken: what its guests really use. A host that can't be read stays as it was last seen.
        """
        while not self._is_simulated:
            try:
                if await self.look(ledger, taken=taken):
                    capacity_changed()
            except OSError as problem:
                _log.warning("this host can't be measured", extra={"why": repr(problem)})
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(
        self, ledger: Ledger, *, taken: Callable[[], Awaitable[Mapping[str, GuestUse]]]
    ) -> bool:
        """Look once; return whether the room has changed. Raises OSError."""
        # Before its guests: what they take meanwhile counts as free for a moment. The other way
        # round it would count twice, and somebody be refused for it.
        host = self._state()
        taken_by_id = await taken()
        total = host_capacity(
            self._settings,
            host,
            gpus=self._gpus,
            taken_disk_mib=taken_disk_mib(ledger.booked, taken_by_id),
        )
        resized = ledger.resize(total)
        missing_mib = withheld_mib(host, total=total, booked=ledger.booked, taken=taken_by_id)
        self._tell(missing_mib)
        return ledger.withhold(Resources(vcpu=0, memory_mib=missing_mib)) or resized

    def _tell(self, missing_mib: int) -> None:
        if missing_mib and not self._lacked:
            _log.warning(
                "others use more memory than is reserved for them",
                extra={"withheld_mib": missing_mib},
            )
        elif self._lacked and not missing_mib:
            _log.info("others use no more memory than is reserved for them")
        self._lacked = missing_mib > 0
