"""Which regions were asked in vain for an instance type some seconds ago: they are asked last.

They had nobody, could not be reached, or gave no answer. Never skipped: a refusal always rests on
fresh answers. Kept by each process for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REMEMBERED_S: Final = 5.0
# A process that serves thousands of types and zones must not keep what is long out of date.
_MOST_KEPT: Final = 4_096

_Place: TypeAlias = tuple[str, str, str | None]


class RefusalMemory:
    """Remembers for REMEMBERED_S where a type was asked for in vain. clock_s: monotonic seconds."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._until_s: dict[_Place, float] = {}

    def __len__(self) -> int:
        """How many are kept, those that are out of date included."""
        return len(self._until_s)

    def note(self, region: str, instance_type: str, zone: str | None, *, vain: bool) -> None:
        """Remember that a region was asked in vain for this type, or that it has taken it."""
        place = (region, instance_type, zone)
        if not vain:
            self._until_s.pop(place, None)
            return
        if len(self._until_s) >= _MOST_KEPT:
            self._forget_old()
        self._until_s[place] = self._clock_s() + REMEMBERED_S

    def asked_in_vain(
        self, regions: Iterable[str], instance_type: str, zone: str | None
    ) -> frozenset[str]:
        """Return those of the regions that were asked in vain within REMEMBERED_S."""
        now_s = self._clock_s()
        return frozenset(
            region
            for region in regions
            if self._until_s.get((region, instance_type, zone), now_s) > now_s
        )

    def _forget_old(self) -> None:
        now_s = self._clock_s()
        current = {place: at_s for place, at_s in self._until_s.items() if at_s > now_s}
        self._until_s = current if len(current) < _MOST_KEPT else {}
