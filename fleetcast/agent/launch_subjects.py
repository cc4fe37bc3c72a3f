"""The subjects by which a node's types are launched, and how much room is behind each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.subjects import launch_subject

if TYPE_CHECKING:
    from fleetcast.agent.capacity.ledger import Ledger
    from fleetcast.agent.capacity.served_types import ServedTypes


class LaunchSubjects:
    """Of each type served: one for its region, and one for the node's zone, if it has one."""

    def __init__(
        self, served_types: ServedTypes, ledger: Ledger, *, region: str, zone: str | None
    ) -> None:
        places = [None] if zone is None else [None, zone]
        self._ledger = ledger
        self._by_need = {
            need: [launch_subject(region, name, place) for name in names for place in places]
            for need, names in served_types.by_need.items()
        }

    def room(self) -> dict[str, int]:
        """Return how many more launches by each of them there is room for now."""
        rooms: dict[str, int] = {}
        for need, subjects in self._by_need.items():
            rooms.update(dict.fromkeys(subjects, self._ledger.room(need)))
        return rooms
