"""Which guest has which GPU. What guests have recorded is the truth; this is made of it at start.

The ledger keeps count, so there is a free GPU for each guest that is booted. A guest that is
stopped gives its GPUs back, and may get others when it is started again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.agent.drivers import BootFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetcast.agent.drivers import Guest


class GpuAssignments:
    """addresses: on PCI, of all GPUs that guests may have."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._by_guest: dict[str, tuple[str, ...]] = {}

    def adopt(self, guest: Guest) -> None:
        """Note what a guest that runs has, also if it could not be given that any more."""
        if guest.gpu_addresses:
            self._by_guest[guest.instance_id] = guest.gpu_addresses

    def assign(self, instance_id: str, count: int) -> tuple[str, ...]:
        """Give a guest so many GPUs, or return those that it has. Raises BootFailed."""
        has = self._by_guest.get(instance_id, ())
        if len(has) == count:
            return has
        taken = {each for guest in self._by_guest.values() for each in guest} - set(has)
        free = [each for each in self._addresses if each not in taken]
        if len(free) < count:
            raise BootFailed(f"{count} GPUs are needed, and {len(free)} are free")
        self._by_guest[instance_id] = tuple(free[:count])
        return self._by_guest[instance_id]

    def give_back(self, instance_id: str) -> None:
        """Take a guest's GPUs away: its QEMU is gone, or was never there."""
        self._by_guest.pop(instance_id, None)
