"""Launches through the functions' own code, the walk and the bus, without DynamoDB."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import nats.errors

from bench.nodes import INSTANCE_TYPE, REGION
from fleetcast import messages
from fleetcast.errors import InsufficientInstanceCapacity
from fleetcast.subjects import launch_subject
from lambdas.bus import Bus
from lambdas.claims import ORDER_VALID_MS, Claims
from lambdas.run_instances.launch_request import Wanted
from lambdas.run_instances.placement import UnknownOutcome, Walk
from lambdas.run_instances.region_fill import Asking
from lambdas.settings import Region

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from nats.aio.client import Client

_DEADLINE_S: Final = 20.0
_ASKED_AGAIN: Final = 20
ACCEPT_TIMEOUT_S: Final = 5.0


@dataclass
class Tally:
    """What became of a number of launches.

    unanswered: requests without an answer. asked_again: launches that ended without knowing what
    became of one, so that their callers ask again. unknown: those of them that never got to know.
    resolutions_s: how long it took to know, from the moment when an answer had been waited for in
    vain.
    """

    launched: int = 0
    refused: int = 0
    unanswered: int = 0
    asked_again: int = 0
    unknown: int = 0
    resolutions_s: list[float] = field(default_factory=list)


@asynccontextmanager
async def bus_to(url: str) -> AsyncIterator[Bus]:
    """Connect as the functions do."""
    bus = Bus({REGION: Region(name=REGION, nats_url=url)}, credentials=lambda _: "")
    try:
        yield bus
    finally:
        await bus.close()


async def launch_one(
    bus: Bus, number: int, tally: Tally, *, known_nodes: Collection[str] = ()
) -> None:
    """Launch one t3.medium and count what came of it."""
    request = request_for(number)
    launch_id = f"r-{number:017x}"
    claims = Claims(
        bus,
        launch_id,
        known_nodes=lambda _: known_nodes,
        sleep=asyncio.sleep,
        expires_at_ms=lambda: time.time_ns() // 1_000_000 + ORDER_VALID_MS,
    )
    walk = Walk(
        Wanted(
            launch_id=launch_id,
            template=request,
            instances=request.instances,
            min_count=1,
            zone=None,
            deadline_s=time.monotonic() + _DEADLINE_S,
        ),
        Asking(
            bus=bus,
            claims=claims,
            clock_s=time.monotonic,
            now_ms=lambda: time.time_ns() // 1_000_000,
            sleep=asyncio.sleep,
            accept_timeout_s=ACCEPT_TIMEOUT_S,
        ),
    )
    began_s = time.monotonic()
    try:
        await walk.place([REGION])
        tally.launched += 1
    except InsufficientInstanceCapacity:
        tally.refused += 1
    except UnknownOutcome:
        tally.asked_again += 1
        await _ask_again(claims, tally)
    unanswered = [ask for ask in walk.log.asks if ask.outcome == "no_answer"]
    tally.unanswered += len(unanswered)
    if unanswered:
        in_vain_s = (unanswered[0].began_ms + unanswered[0].took_ms) / 1000
        tally.resolutions_s.append(time.monotonic() - began_s - in_vain_s)


async def _ask_again(claims: Claims, tally: Tally) -> None:
    """Do what a repeat of the ClientToken does: what the nodes hold is what became of it."""
    for _ in range(_ASKED_AGAIN):
        located = await claims.locate(REGION)
        if located.there:
            tally.launched += 1
            return
        if located.heard_all:
            tally.refused += 1
            return
    tally.unknown += 1


async def launch_at_once(
    buses: Sequence[Bus], count: int, *, known_nodes: Collection[str]
) -> Tally:
    """Launch `count` t3.medium, all at the same moment, over these connections in turn."""
    tally = Tally()
    await asyncio.gather(
        *(
            launch_one(buses[number % len(buses)], number, tally, known_nodes=known_nodes)
            for number in range(count)
        )
    )
    return tally


async def ask_at_once(connection: Client, count: int) -> Tally:
    """Launch as a requester without the walk does: one question each, and "full" is a refusal."""
    tally = Tally()

    async def ask(number: int) -> None:
        try:
            reply = await connection.request(
                launch_subject(REGION, INSTANCE_TYPE),
                messages.encode(request_for(number)),
                timeout=ACCEPT_TIMEOUT_S,
            )
        except nats.errors.NoRespondersError:
            tally.refused += 1
        except nats.errors.TimeoutError:
            tally.unanswered += 1
            tally.unknown += 1
        else:
            accepted = isinstance(messages.decode_launch_reply(reply.data), messages.Accepted)
            tally.launched += accepted
            tally.refused += not accepted

    await asyncio.gather(*(ask(number) for number in range(count)))
    return tally


def request_for(number: int) -> messages.LaunchRequest:
    """Return the request for one t3.medium."""
    return messages.LaunchRequest(
        account_id="000000000000",
        instances=(messages.InstanceToLaunch(instance_id=f"i-{number:017x}", launch_index=0),),
        instance_type=INSTANCE_TYPE,
        image_id="ami-0123456789abcdef0",
    )
