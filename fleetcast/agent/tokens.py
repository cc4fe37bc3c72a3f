"""Capacity tokens: how many launches the NATS server may still deliver, by subject.

Owns the decision what to arm and when. The rules, and what breaks without them:

1. Never under-promise: fewer tokens than room, and somebody is refused though there is room.
   A request that takes no room (expired, repeated, not understood) uses up a token as well, so
   there are SPARE_TOKENS more than room.
2. Over-promising is harmless: the surplus is answered `full` and asked again at once. So a
   subscription is shrunk only when it has SURPLUS_FACTOR times the tokens it needs; replacing
   all of a host's subscriptions after each launch would cost most of the throughput.
3. Change by replacing: the new subscription stands before the old one is retired.
4. No room, no subscription: this is what makes "no responders" mean "no capacity".

How a limited subscription is made and retired on a connection is limited_subscription's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SPARE_TOKENS: Final = 2
SURPLUS_FACTOR: Final = 4


class Armed(Protocol):
    """A subscription that the server removes after its last token."""

    @property
    def remaining(self) -> int:
        """Tokens not yet delivered here, >= 0. The server holds at most that many."""


ArmedT = TypeVar("ArmedT", bound=Armed)


class Subscriptions(Protocol[ArmedT]):
    """Makes and retires limited subscriptions: NATS, or the simulated server of the tests."""

    async def arm(self, subject: str, limit: int) -> ArmedT:
        """Subscribe for exactly `limit` deliveries, limit >= 1."""

    async def retire(self, armed: Sequence[ArmedT]) -> None:
        """Remove the interest; everything the server had delivered by then is still handled.

        May be repeated, and must be after an error: until it returns, the server may deliver.
        """


class CapacityTokens(Generic[ArmedT]):
    """Keeps the armed subscriptions in step with the room on this host.

    room_by_subject: asked in each pass, so that admission and tokens use the same answer.
    """

    def __init__(
        self,
        subscriptions: Subscriptions[ArmedT],
        room_by_subject: Callable[[], dict[str, int]],
    ) -> None:
        self._subscriptions = subscriptions
        self._room_by_subject = room_by_subject
        self._armed: dict[str, ArmedT] = {}
        self._retiring: list[ArmedT] = []
        self._renewing = False
        self._one_pass = asyncio.Lock()

    def remaining(self) -> dict[str, int]:
        """Return the tokens of each subject that has any."""
        return {
            subject: armed.remaining for subject, armed in self._armed.items() if armed.remaining
        }

    async def adjust(self) -> None:
        """Bring every subject's tokens in line with the room there is when the pass begins.

        Call it again after a change that came while it ran, or after an error.
        """
        async with self._one_pass:
            if self._renewing:
                self._renewing = False
                self._retiring += self._armed.values()
                self._armed.clear()
            for subject, room in self._room_by_subject().items():
                await self._adjust_subject(subject, room)
            if self._retiring:
                await self._subscriptions.retire(self._retiring)
                self._retiring.clear()

    async def _adjust_subject(self, subject: str, room: int) -> None:
        armed = self._armed.get(subject)
        needed = room + SPARE_TOKENS
        if armed and room and needed <= armed.remaining <= needed * SURPLUS_FACTOR:
            return
        if room:
            self._armed[subject] = await self._subscriptions.arm(subject, needed)
        elif armed:
            del self._armed[subject]
        if armed:
            self._retiring.append(armed)

    def renew(self) -> None:
        """Have the next pass replace every subscription: the server that counted is gone.

        Until then they stand as the client has renewed them, without their limits: that
        over-promises, and loses nothing.
        """
        self._renewing = True
