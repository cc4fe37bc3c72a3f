"""Subscriptions that the NATS server itself removes after their last token.

nats-py's own limit (`Subscription.unsubscribe(limit)`) loses messages: it stops the callback after
the first message past the limit, and forgets a sid while deliveries are still on their way. So the
limit goes to the server only, with a private part of nats-py, and what hears the messages never
awaits: it counts and hands over.
nats-py is pinned; tests/contract/test_limited_subscription.py fails loudly on an upgrade that
changes what is used here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import nats.errors

from fleetcast.subjects import LAUNCH_QUEUE_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.subscription import Subscription

    from fleetcast.agent.nats_client import AgentClient, Delivery

_FLUSH_TIMEOUT_S: Final = 2


class LimitedSubscription:
    """One SUB with its UNSUB max. limit: deliveries that the server will make in all."""

    def __init__(self, subject: str, limit: int) -> None:
        self.subject = subject
        self.limit = limit
        self.received = 0
        self.subscription: Subscription | None = None

    @property
    def remaining(self) -> int:
        """Tokens that have not arrived here yet."""
        return max(self.limit - self.received, 0)


class NatsSubscriptions:
    """Makes and retires limited subscriptions on one connection.

    deliver: gets every message, also those that arrive while a subscription is being retired.
    It must not block.
    """

    def __init__(self, connection: AgentClient, deliver: Callable[[Delivery], None]) -> None:
        self._connection = connection
        self._deliver = deliver
        self._pongs: set[asyncio.Future[None]] = set()

    async def arm(self, subject: str, limit: int) -> LimitedSubscription:
        """Subscribe for exactly `limit` deliveries. Raises nats.errors.Error when closed."""
        armed = LimitedSubscription(subject, limit)

        def count_and_hand_over(message: Delivery) -> None:
            armed.received += 1
            self._deliver(message)

        subscription = await self._connection.hear(
            subject, count_and_hand_over, queue=LAUNCH_QUEUE_GROUP
        )
        armed.subscription = subscription
        # The server counts from the SUB on, so what it delivers in between is within the limit.
        await self._connection._send_unsubscribe(subscription._id, limit)  # noqa: SLF001 - see the module
        return armed

    async def retire(self, armed: Sequence[LimitedSubscription]) -> None:
        """Remove the interest, hand over what was on its way, then forget the sids.

        Raises nats.errors.Error when the server doesn't answer. The sids are kept then: one that
        is forgotten too early swallows what is delivered to it.
        """
        subscriptions = [one.subscription for one in armed if one.subscription]
        for subscription in subscriptions:
            await self._connection._send_unsubscribe(subscription._id)  # noqa: SLF001 - see the module
        await self.settle()
        for subscription in subscriptions:
            self._connection._remove_sub(subscription._id)  # noqa: SLF001 - see the module

    async def settle(self) -> None:
        """Return when the server has carried out everything asked of it before.

        Raises nats.errors.Error when it doesn't answer.
        """
        # nats-py writes a PING ahead of the commands that still wait in its buffer.
        # When the first PONG is here they are written, so the second one comes after them.
        await self._flush()
        await self._flush()

    async def _flush(self) -> None:
        """Return when the server has answered a PING.

        nats-py's own flush cancels the future of a PONG that is late, but leaves it in its queue.
        When that PONG comes, its read loop dies of it, and the agent hears nothing more until the
        connection counts as stale, half a minute later; its flushes even succeed meanwhile.
        """
        if not self._connection.is_connected:
            raise nats.errors.FlushTimeoutError
        pong = asyncio.get_running_loop().create_future()
        self._pongs.add(pong)
        try:
            await self._connection._send_ping(pong)  # noqa: SLF001 - see the module
            await asyncio.wait([pong], timeout=_FLUSH_TIMEOUT_S)
        finally:
            self._pongs.discard(pong)
        if not pong.done() or pong.cancelled():
            raise nats.errors.FlushTimeoutError

    def connection_lost(self) -> None:
        """Wait no longer for what the server that is gone would have answered.

        Call it before the client is connected again: it begins anew then with what it waits for.
        """
        for pong in self._pongs:
            pong.cancel()
