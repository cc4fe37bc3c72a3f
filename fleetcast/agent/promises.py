"""What a node has claimed for launches and not promised yet: who asks about it waits for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetcast.agent.entries import Entry


class Fallback(NamedTuple):
    """What a claim falls back to if it can't be promised. entry: None: to nothing."""

    entry: Entry | None
    is_booked: bool


class Promise:
    """Claims that are promised together. fallbacks: by instance id."""

    def __init__(self) -> None:
        self.fallbacks: dict[str, Fallback] = {}
        self.decided = asyncio.Event()


class Promises:
    """The promises that are not kept yet."""

    def __init__(self) -> None:
        self._by_id: dict[str, Promise] = {}
        self._next = Promise()

    def __contains__(self, instance_id: str) -> bool:
        return instance_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def claim(self, instance_id: str, fallback: Fallback) -> None:
        """Make an instance a part of the next promise."""
        self._next.fallbacks[instance_id] = fallback
        self._by_id[instance_id] = self._next

    def concern(self, instance_ids: Iterable[str]) -> bool:
        """Say whether one of these is claimed, and not promised yet."""
        return not self._by_id.keys().isdisjoint(instance_ids)

    def before(self, entry: Entry) -> Entry | None:
        """Return what is sure of an instance: the entry itself, or what it falls back to."""
        instance_id = entry.guest.instance_id
        promise = self._by_id.get(instance_id)
        return promise.fallbacks[instance_id].entry if promise else entry

    def take_next(self) -> Promise:
        """Return everything claimed since the last time. It must be given to `decide`."""
        promise, self._next = self._next, Promise()
        return promise

    def decide(self, promise: Promise) -> None:
        """Let those go on who wait for it: it is kept, or has fallen back."""
        for instance_id in promise.fallbacks:
            del self._by_id[instance_id]
        promise.decided.set()

    async def decided(self, instance_ids: Iterable[str]) -> None:
        """Wait until none of these is still being promised."""
        ids = tuple(instance_ids)
        while waited_for := [self._by_id[one] for one in ids if one in self._by_id]:
            await waited_for[0].decided.wait()
