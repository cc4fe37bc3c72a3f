"""Launches through the functions' own walk and bus, without a table: a thousand at once."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from fleetcast import messages
from fleetcast.errors import InsufficientInstanceCapacity, ServiceUnavailable
from lambdas.bus import Bus
from lambdas.claims import ORDER_VALID_MS, Claims
from lambdas.run_instances.launch_request import Wanted
from lambdas.run_instances.placement import UnknownOutcome, Walk
from lambdas.run_instances.region_fill import Asking
from lambdas.settings import Region
from tests.chaos.functions import ACCOUNT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lambdas.claims import Placed
    from tests.chaos.world import World

_DEADLINE_S: Final = 60.0
_ACCEPT_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def walker(world: World, region: str) -> AsyncIterator[Walker]:
    """Connect to a region as the functions do."""
    bus = Bus({region: Region(name=region, nats_url=world.regions[region])}, credentials=str)
    try:
        yield Walker(world, region, bus)
    finally:
        await bus.close()


class Walker:
    """Launches single instances in one region, and tells the tally what came of it."""

    def __init__(self, world: World, region: str, bus: Bus) -> None:
        self._world = world
        self._region = region
        self._bus = bus
        self.refused_types: list[str] = []
        self.placed: dict[str, Placed] = {}

    async def launch(self, number: int, instance_type: str = "t3.medium") -> None:
        """Launch one instance."""
        launch_id = f"r-{number:017x}"
        instance = messages.InstanceToLaunch(instance_id=f"i-{number:017x}", launch_index=0)
        walk = Walk(
            Wanted(
                launch_id=launch_id,
                template=messages.LaunchRequest(
                    account_id=ACCOUNT,
                    instances=(),
                    instance_type=instance_type,
                    image_id="ami-00000001",
                ),
                instances=(instance,),
                min_count=1,
                zone=None,
                deadline_s=time.monotonic() + _DEADLINE_S,
            ),
            Asking(
                bus=self._bus,
                claims=Claims(
                    self._bus,
                    launch_id,
                    known_nodes=lambda _: self._world.nodes,
                    sleep=asyncio.sleep,
                    expires_at_ms=lambda: self._now_ms() + ORDER_VALID_MS,
                ),
                clock_s=time.monotonic,
                now_ms=self._now_ms,
                sleep=asyncio.sleep,
                accept_timeout_s=_ACCEPT_TIMEOUT_S,
            ),
        )
        tally = self._world.tally
        tally.requests += 1
        try:
            (placed,) = await walk.place([self._region])
        except InsufficientInstanceCapacity:
            tally.refused += 1
            self.refused_types.append(instance_type)
        except (UnknownOutcome, ServiceUnavailable):
            tally.unknown += 1
        else:
            tally.accepted.append(frozenset({placed.instance_id}))
            self.placed[placed.instance_id] = placed

    def _now_ms(self) -> int:
        return self._world.clock.now_ns() // 1_000_000
