"""What is free on this host, and for which instances the rest is used.

Owns the answer to "how many more of this type?" for tokens, admission and reports. No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from fleetcast.capacity import Resources, how_many_fit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Cause: TypeAlias = Literal[
    "stopping", "journal unwritable", "set aside", "cordoned", "draining", "nothing to boot"
]


class Ledger:
    """The books of one host.

    An open ledger admits as long as there is room; a closed one has room for nothing, but
    goes on accounting for what it holds. It is open when no cause keeps it closed any more.
    free: what is neither booked nor withheld; negative on a host that is over-full.
    """

    def __init__(self, total: Resources) -> None:
        self.total = total
        self.free = total
        self._withheld = Resources(vcpu=0, memory_mib=0)
        self._held: dict[str, Resources] = {}
        self._closed_by: dict[Cause, str] = {}

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def room(self, need: Resources) -> int:
        """Return how many more instances that each use `need` would be admitted now."""
        return 0 if self._closed_by else how_many_fit(self.free, need)

    def reserve(self, instance_id: str, need: Resources) -> bool:
        """Book `need` for an instance if there is room. Return whether it was booked.

        An id that is already booked stays booked once: True, and nothing changes.
        """
        if instance_id in self._held:
            return True
        if not self.room(need):
            return False
        self._book(instance_id, need)
        return True

    def adopt(self, instance_id: str, need: Resources) -> None:
        """Book an instance that is already there, whether it fits or not.

        A guest that is alive is never given up over arithmetic; the host is then over-full
        and has room for nothing until enough has gone.
        """
        if instance_id not in self._held:
            self._book(instance_id, need)

    def release(self, instance_id: str) -> bool:
        """Give back what an instance used. Return False if nothing was booked for it."""
        need = self._held.pop(instance_id, None)
        if need is None:
            return False
        self.free = self.free + need
        return True

    @property
    def booked(self) -> Mapping[str, Resources]:
        """What is booked, by instance."""
        return self._held

    def resize(self, total: Resources) -> bool:
        """Have the host be as large as that. Return False if it is already.

        What is booked stays booked, also when the host has become too small for it.
        """
        grown = total - self.total
        self.total = total
        self.free = self.free + grown
        return any(msgspec.structs.astuple(grown))

    def withhold(self, amount: Resources) -> bool:
        """Count that much as not free, instead of what was withheld before.

        Return False if it is the same.
        """
        more = amount - self._withheld
        self._withheld = amount
        self.free = self.free - more
        return any(msgspec.structs.astuple(more))

    @property
    def closed(self) -> str | None:
        """Why it admits nothing, as operators are shown it; None: it is open."""
        return (
            "; ".join(f"{cause}: {why}" if why else cause for cause, why in self._closed_by.items())
            or None
        )

    def close(self, cause: Cause, why: str = "") -> bool:
        """Admit nothing as long as `cause` lasts. Return False if it lasted already."""
        is_new = cause not in self._closed_by
        self._closed_by[cause] = why
        return is_new

    def reopen(self, cause: Cause) -> None:
        """End a cause; another one may still keep the ledger closed."""
        self._closed_by.pop(cause, None)

    def _book(self, instance_id: str, need: Resources) -> None:
        self._held[instance_id] = need
        self.free = self.free - need
