"""The instance types that a node serves, and what an instance of each takes of its host.

The one place that says so: admission, tokens and reports all ask here. No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fleetcast.capacity import Resources, resources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fleetcast.agent.capacity.ledger import Ledger
    from fleetcast.instance_types import InstanceType


class ServedTypes:
    """Types by name, in the order given. Never changes.

    overhead_mib: what running a guest takes beside its own memory, by its memory; both MiB.
    root_disk_gib: booked for an instance that asks for no root disk of a size; 0: the node doesn't
    account for its disk.
    """

    def __init__(
        self,
        instance_types: Mapping[str, InstanceType],
        *,
        overhead_mib: Callable[[int], int],
        root_disk_gib: int = 0,
    ) -> None:
        self._types = dict(instance_types)
        self._root_disk_gib = root_disk_gib
        self._overhead_mib = {
            name: overhead_mib(instance_type.memory_mib)
            for name, instance_type in self._types.items()
        }
        by_need: dict[Resources, list[str]] = {}
        for name in self._types:
            by_need.setdefault(self.need(name), []).append(name)
        # EC2's 1,395 types come in 170 sizes: what is asked by need is asked far less often.
        self.by_need = {need: tuple(names) for need, names in by_need.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def get(self, name: str) -> InstanceType | None:
        """Return the type of that name, if it is served."""
        return self._types.get(name)

    def overhead_mib(self, name: str) -> int:
        """Return what running an instance of a served type takes beside its own memory, in MiB."""
        return self._overhead_mib[name]

    def disk_gib(self, root_disk_gib: int | None) -> int:
        """Return what is booked for an instance that asks for a root disk of that size, or none."""
        return (root_disk_gib or self._root_disk_gib) if self._root_disk_gib else 0

    def need(self, name: str) -> Resources:
        """Return what an instance of a served type takes that asks for nothing special."""
        bare = resources_of(self._types[name])
        return msgspec.structs.replace(
            bare,
            memory_mib=bare.memory_mib + self._overhead_mib[name],
            disk_gib=self._root_disk_gib,
        )

    def room(self, ledger: Ledger) -> dict[str, int]:
        """Return how many more of each type fit; only types with room."""
        return {
            name: room
            for need, names in self.by_need.items()
            if (room := ledger.room(need))
            for name in names
        }
