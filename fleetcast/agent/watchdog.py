"""Whether NATS still serves this agent; when it doesn't, the agent ends, so that it is restarted.

A node that looks alive and hears nothing is worse than one that restarts: guests run on meanwhile.
What counts is a round trip to the server. Without one for SILENCE_S the agent ends, whatever the
reason: a server that hangs, a socket that leads nowhere, a certificate that is no longer right,
credentials that were revoked. One reason is excepted: nobody listens at the server's address. To
restart an agent would not bring its server back, so it goes on trying.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import nats.errors

from fleetcast.agent.nats_troubles import NATS_IS_DOWN, ConnectionLost, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nats.aio.client import Client

    from fleetcast.agent.service_manager import ServiceManager

# nats-py takes 30 s to find a connection dead and make a new one, which is no reason to end.
SILENCE_S: Final = 45
_LOOK_EVERY_S: Final = 5
_TCP_WITHIN_S: Final = 3


class Watchdog:
    """Watches one connection.

    round_trip: returns when the server has answered; raises nats.errors.Error when it doesn't.
    manager: told each time that all is well, or that a restart would not mend it.
    """

    def __init__(
        self,
        connection: Client,
        *,
        round_trip: Callable[[], Awaitable[None]],
        manager: ServiceManager,
        silence_s: float = SILENCE_S,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._connection = connection
        self._round_trip = round_trip
        self._manager = manager
        self._silence_s = silence_s
        self._look_every_s = look_every_s

    async def keep_watching(self) -> None:
        """Raise ConnectionLost when the agent has to end; return never."""
        now_s = asyncio.get_running_loop().time
        well_at_s = now_s()
        while True:
            if status := await self._status():
                well_at_s = now_s()
                self._manager.alive(status)
            elif now_s() - well_at_s > self._silence_s:
                raise ConnectionLost(self._why())
            await asyncio.sleep(self._look_every_s)

    async def _status(self) -> str | None:
        """Return what is well, or why a restart would mend nothing; None if one might."""
        if self._connection.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._round_trip()
                return "serving"
        elif not await self._somebody_listens():
            return NATS_IS_DOWN
        return None

    async def _somebody_listens(self) -> bool:
        servers = [(url.hostname, url.port) for url in self._connection.servers]
        # Before the client has begun to connect it knows of none.
        if not servers:
            return True
        return any(await asyncio.gather(*(_accepts(host, port) for host, port in servers)))

    def _why(self) -> str:
        if self._connection.is_connected:
            return f"NATS has not answered for {self._silence_s:g} s, though the connection stands"
        why = told(self._connection.last_error)
        return f"NATS listens, but has not let this agent in for {self._silence_s:g} s: {why}"


async def _accepts(host: str | None, port: int | None) -> bool:
    try:
        async with asyncio.timeout(_TCP_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
