"""Capacity tokens: how many launches the NATS server may still deliver, by subject.

Owns the decision what to arm and when. The rules, and what breaks without them:

1. Never under-promise: fewer tokens than room, and somebody is refused though there is room.
2. Over-promising is harmless: the surplus is answered `full` and asked again at once. So a
   subscription is shrunk only when its tokens exceed SURPLUS_FACTOR times the room; replacing
   all of a host's subscriptions after each launch would cost most of the throughput.
3. Change by replacing: the new subscription stands before the old one is retired.
4. No room, no subscription: this is what makes "no responders" mean "no capacity".

How a limited subscription is made and retired on a connection is limited_subscription's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        """Remove the interest; everything the server had delivered by then is still handled."""


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

    def remaining(self) -> dict[str, int]:
        """Return the tokens of each subject that has any."""
        return {
            subject: armed.remaining for subject, armed in self._armed.items() if armed.remaining
        }

    async def adjust(self) -> None:
        """Bring every subject's tokens in line with the room there is now.

        One pass at a time; call it again after a change that came while it ran.
        """
        retired: list[ArmedT] = []
        for subject, room in self._room_by_subject().items():
            armed = self._armed.get(subject)
            tokens = armed.remaining if armed else 0
            if room <= tokens <= room * SURPLUS_FACTOR:
                # Includes "no room and no tokens": an exhausted subscription is gone from the
                # server, but still to be forgotten here.
                if armed and not tokens:
                    retired.append(self._armed.pop(subject))
                continue
            if room:
                self._armed[subject] = await self._subscriptions.arm(subject, room)
            else:
                del self._armed[subject]
            if armed:
                retired.append(armed)
        if retired:
            await self._subscriptions.retire(retired)

    async def forget(self) -> None:
        """Drop every subscription, because the server that held them is gone."""
        lost = list(self._armed.values())
        self._armed.clear()
        await self._subscriptions.retire(lost)
