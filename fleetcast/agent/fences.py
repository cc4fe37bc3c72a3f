"""Which instances are never to be accepted again, and under which attempts. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.agent.entries import Fence

if TYPE_CHECKING:
    from collections.abc import Iterable


class Fences:
    """The fences of one node, as the journal has them or will have them."""

    def __init__(self) -> None:
        self._by_id: dict[str, Fence] = {}

    def load(self, fences: Iterable[Fence]) -> None:
        """Take up what the journal has."""
        self._by_id = {fence.instance_id: fence for fence in fences}

    def bar(self, instance_id: str, attempt: int) -> bool:
        """Say whether an instance is not to be accepted under this attempt."""
        fence = self._by_id.get(instance_id)
        return fence is not None and attempt <= fence.attempt

    def set(self, instance_ids: Iterable[str], attempt: int, *, now_s: float) -> list[Fence]:
        """Bar these under an attempt and all older ones; return what is to be recorded of it.

        now_s: epoch seconds.
        """
        fences = []
        for instance_id in dict.fromkeys(instance_ids):
            before = self._by_id.get(instance_id)
            highest = max(attempt, before.attempt if before else 0)
            fence = Fence(instance_id=instance_id, attempt=highest, set_at_s=now_s)
            self._by_id[instance_id] = fence
            fences.append(fence)
        return fences

    def forget(self, before_s: float) -> None:
        """Forget those that were set before an epoch second."""
        self._by_id = {
            instance_id: fence
            for instance_id, fence in self._by_id.items()
            if fence.set_at_s >= before_s
        }
