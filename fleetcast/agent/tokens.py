"""Capacity tokens: how many launches the NATS server may still deliver, by subject.

Owns the decision what to arm and when. The rules, and what breaks without them:

1. Never under-promise: fewer tokens than room, and somebody is refused though there is room.
   A request that takes no room (expired, repeated, not understood) uses up a token as well, so
   there are SPARE_TOKENS more than room.
2. Over-promising is harmless: the surplus is answered `full` and asked again at once. So a
   subscription is shrunk only when it has SURPLUS_FACTOR times the tokens it needs; replacing
   all of a host's subscriptions after each launch would cost most of the throughput.
3. Change by replacing: the new subscription stands before the old one is retired, and for LINGER_S
   longer. A server that is just about to deliver a request may have looked up who listens before
   the new one stood; if the old one were gone by then, it would answer that nobody is there.
4. No room, no subscription: this is what makes "no responders" mean "no capacity".

How a limited subscription is made and retired on a connection is limited_subscription's.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SPARE_TOKENS: Final = 2
SURPLUS_FACTOR: Final = 4
LINGER_S: Final = 0.05


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
    in_hand: how many requests have been delivered and not decided, by subject; each may take room
    yet. call_later: calls a function after so many seconds, as an event loop does. changed: called
    when another pass is due.
    """

    def __init__(
        self,
        subscriptions: Subscriptions[ArmedT],
        *,
        room_by_subject: Callable[[], dict[str, int]],
        in_hand: Callable[[], Mapping[str, int]],
        call_later: Callable[[float, Callable[[], None]], object],
        changed: Callable[[], None],
    ) -> None:
        self._subscriptions = subscriptions
        self._room_by_subject = room_by_subject
        self._in_hand = in_hand
        self._call_later = call_later
        self._changed = changed
        self._armed: dict[str, ArmedT] = {}
        self._lingering: dict[str, list[ArmedT]] = {}
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
                for subject in list(self._armed):
                    self._leave(subject)
            rooms = self._room_by_subject()
            in_hand = self._in_hand()
            for subject in [one for one in self._armed if not rooms[one]]:
                self._leave(subject)
            for subject, room in rooms.items():
                if room and not self._is_in_line(subject, room, in_hand.get(subject, 0)):
                    await self._rearm(subject, room)
            if retiring := list(self._retiring):
                await self._subscriptions.retire(retiring)
                del self._retiring[: len(retiring)]

    def _is_in_line(self, subject: str, room: int, in_hand: int) -> bool:
        armed = self._armed.get(subject)
        if armed is None:
            return False
        needed = room + SPARE_TOKENS
        return needed - in_hand <= armed.remaining <= needed * SURPLUS_FACTOR

    async def _rearm(self, subject: str, room: int) -> None:
        armed = await self._subscriptions.arm(subject, room + SPARE_TOKENS)
        old = self._armed.get(subject)
        self._armed[subject] = armed
        if old:
            self._lingering.setdefault(subject, []).append(old)
            self._call_later(LINGER_S, partial(self._end_lingering, subject, old))

    def _end_lingering(self, subject: str, armed: ArmedT) -> None:
        lingering = self._lingering.get(subject, [])
        if armed in lingering:
            lingering.remove(armed)
            self._retiring.append(armed)
            self._changed()

    def _leave(self, subject: str) -> None:
        self._retiring += [self._armed.pop(subject), *self._lingering.pop(subject, [])]

    def renew(self) -> None:
        """Have the next pass replace every subscription: the server that counted is gone.

        Until then they stand as the client has renewed them, without their limits: that
        over-promises, and loses nothing.
        """
        self._renewing = True
