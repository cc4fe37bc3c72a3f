"""A bus to one server, and who listens there."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from nats.aio.client import Client

from lambdas.bus import Bus
from lambdas.settings import Region
from tests.settled_client import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.msg import Msg

REGION: Final = "us-east-1"
BUS_NAME: Final = "fleetcast-tests"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def no_credentials(name: str) -> str:
    raise AssertionError(f"asked for {name}")


def bus_to(url: str, clock: Clock | None = None) -> Bus:
    return Bus(
        {REGION: Region(name=REGION, nats_url=url)},
        no_credentials,
        client_name=BUS_NAME,
        clock_s=clock or time.monotonic,
    )


@contextlib.asynccontextmanager
async def listener(url: str, *, silent: bool = False) -> AsyncIterator[list[Msg]]:
    """Listen to everything under `ask.`, answer with what was asked, and give what came."""
    heard: list[Msg] = []
    client = Client()
    await client.connect(url, name="listener", allow_reconnect=False)

    async def hear(message: Msg) -> None:
        heard.append(message)
        if not silent:
            await message.respond(message.data)

    await client.subscribe("ask.>", cb=hear)
    await settled(client)
    try:
        yield heard
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def closing(bus: Bus) -> AsyncIterator[Bus]:
    try:
        yield bus
    finally:
        await bus.close()
