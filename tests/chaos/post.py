"""What becomes of the requests that functions send: lost, late, twice, or their answers lost.

Between the functions and the servers, so that agents and servers are the real ones: to an agent, a
request that is delivered again is one that the network has doubled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import nats.errors

from fleetcast.subjects import NodeAction, RegionAction, action_of
from lambdas.bus import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nats.aio.client import Client

    from lambdas.claims import RegionBus
    from tests.chaos.faults import Faults

Fate: TypeAlias = Literal["delivered", "lost", "late", "answer lost", "twice"]
LAUNCH: Final = "RunInstances"
_NAMED: Final = frozenset({*NodeAction, *RegionAction})


def named(subject: str) -> str:
    """Return what a subject asks for: an action of nodes or regions, or RunInstances."""
    action = action_of(subject)
    return action if action in _NAMED else LAUNCH


@dataclass(frozen=True)
class Letter:
    """A request as it was sent."""

    region: str
    subject: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Post:
    """Decides on requests. fate: of the next one that asks for this. late: those kept back.

    sent: all that were sent, delivered or not.
    """

    fate: Callable[[str], Fate] = lambda _: "delivered"
    late: list[Letter] = field(default_factory=list)
    sent: list[Letter] = field(default_factory=list)

    def fates(self, action: str, *fates: Fate) -> None:
        """Let the next requests of an action have these fates, and all others arrive."""
        left = list(fates)
        self.fate = lambda one: left.pop(0) if one == action and left else "delivered"

    async def deliver(self, letters: list[Letter], connections: Mapping[str, Client]) -> list[str]:
        """Deliver letters, in that order, to whoever gets them now. Return what is answered."""

        async def answer_to(letter: Letter) -> str:
            try:
                reply = await connections[letter.region].request(
                    letter.subject, letter.payload, timeout=1, headers=letter.headers or None
                )
            except nats.errors.Error as error:  # nobody has room, or an order that is too late
                return type(error).__name__
            return reply.data.decode()

        return await asyncio.gather(*map(answer_to, letters))

    async def deliver_late(self, connections: Mapping[str, Client]) -> list[str]:
        """Deliver all that was kept back."""
        letters, self.late = self.late, []
        return await self.deliver(letters, connections)


class FaultyBus:
    """A bus whose questions are points, and whose requests go through the post."""

    def __init__(self, bus: RegionBus, faults: Faults, post: Post) -> None:
        self._bus = bus
        self._faults = faults
        self._post = post

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        letter = Letter(region, subject, payload)

        def made() -> Mapping[str, str]:
            if headers and not letter.headers:
                letter.headers.update(headers())
            return letter.headers

        async def send() -> bytes:
            return await self._bus.ask(
                region,
                subject,
                payload,
                timeout_s=timeout_s,
                headers=made if headers else None,
            )

        async def send_twice() -> bytes:
            copies = [asyncio.create_task(send()) for _ in range(2)]
            done, other = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(other or done)
            return await done.pop()

        what = named(subject)
        self._faults.pass_point(f"before ask {what}")
        try:
            match self._sent(letter):
                case "twice":
                    return await send_twice()
                case "delivered":
                    return await send()
                case "answer lost":
                    await send()
                case "lost" | "late":
                    made()
            await asyncio.sleep(timeout_s)
            raise NoAnswer(region, f"no answer within {timeout_s:g} s")
        finally:
            self._faults.pass_point(f"after ask {what}")

    async def gather(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        expected: int | None = None,
    ) -> list[bytes]:
        what = named(subject)
        letter = Letter(region, subject, payload)

        async def send() -> list[bytes]:
            return await self._bus.gather(
                region, subject, payload, timeout_s=timeout_s, expected=expected
            )

        self._faults.pass_point(f"before gather {what}")
        try:
            match self._sent(letter):
                case "twice":
                    await send()
                    return await send()
                case "delivered":
                    return await send()
                case "answer lost":
                    await send()
            await asyncio.sleep(timeout_s)
            raise NoAnswer(region, f"no answer within {timeout_s:g} s")
        finally:
            self._faults.pass_point(f"after gather {what}")

    def _sent(self, letter: Letter) -> Fate:
        self._post.sent.append(letter)
        fate = self._post.fate(named(letter.subject))
        if fate == "late":
            self._post.late.append(letter)
        return fate
