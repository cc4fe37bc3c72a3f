"""The agent's connection to its region's NATS: from the first attempt to its end.

Owns what each thing that may happen to it means: what is waited for, what is only logged, and what
makes it impossible to serve. Whether the server still answers is the watchdog's.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nats.protocol.parser import PERMISSIONS_ERR

from fleetcast.agent.nats_troubles import (
    NATS_IS_DOWN,
    ConnectionLost,
    Troubles,
    close_in_time,
    is_out_of_reach,
    told,
)
from fleetcast.errors import InvalidConfiguration
from fleetcast.nats_access import is_credentials_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.nats_client import AgentClient
    from fleetcast.agent.service_manager import ServiceManager
    from fleetcast.agent.settings import NatsSettings

_log = logging.getLogger(__name__)

_PING_INTERVAL_S: Final = 10
_CONNECT_WITHIN_S: Final = 30


class Connection:
    """One connection, which the client makes anew whenever it breaks.

    broken: called at once when it breaks. back: called when it stands again. gone: ends with
    ConnectionLost when there is no point in going on.
    """

    def __init__(
        self,
        client: AgentClient,
        settings: NatsSettings,
        *,
        manager: ServiceManager,
        broken: Callable[[], None],
        back: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._client = client
        self._settings = settings
        self._manager = manager
        self._broken = broken
        self._back = back
        self._has_stood = False
        self._troubles = Troubles(loop.time)
        self.gone: asyncio.Future[None] = loop.create_future()

    async def connect(self, name: str) -> None:
        """Connect. name: what the server's monitoring shows.

        Where a service manager looks on it waits for a server that is down, else for 30 s.
        Raises InvalidConfiguration for credentials that are none, ConnectionLost when the server
        doesn't answer, and what nats-py and nkeys raise for a server that refuses.
        """
        if self._settings.credentials_file is not None:
            check_credentials(Path(self._settings.credentials_file))
        connecting = self._client.connect(
            self._settings.url,
            name=name,
            user_credentials=self._settings.credentials_file,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=_PING_INTERVAL_S,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        try:
            # Not all of it has a time-out of its own; where it may wait, the watchdog looks on.
            within_s = None if self._manager.listens else _CONNECT_WITHIN_S
            await asyncio.wait_for(connecting, within_s)
        except TimeoutError as problem:
            why = f"can't connect to {self._settings.url}: {told(problem)}"
            raise ConnectionLost(why) from None
        self._has_stood = True

    def may_end(self) -> None:
        """Take it for no loss from here on when it is closed."""
        if not self.gone.cancel():
            self.gone.exception()  # it has been raised, or something worse has

    async def close(self) -> None:
        """Close it, if it has ever stood."""
        if self._has_stood:
            await close_in_time(self._client)

    async def _on_error(self, error: Exception) -> None:
        if not self._has_stood and self._manager.listens and is_out_of_reach(error):
            # To be restarted until the server is there would cut short what guests do meanwhile.
            self._manager.ready(NATS_IS_DOWN)
            self._troubles.heard(error)
        elif not self._has_stood:
            # The client would try for ever; a wrong URL should be told to who has just typed it.
            self._fail(f"can't connect to {self._settings.url}: {told(error)}")
        # nats-py has no class for it, only this constant part of the text.
        elif f"{PERMISSIONS_ERR} for subscription" in str(error):
            # Without its subjects the node looks alive and is not: better to be restarted.
            self._fail(f"NATS refuses what the agent needs: {error}")
        else:
            self._troubles.heard(error)

    async def _on_disconnected(self) -> None:
        self._broken()
        if not self._client.is_closed:
            _log.warning("disconnected from NATS, reconnecting")

    async def _on_reconnected(self) -> None:
        _log.info("reconnected to NATS")
        self._troubles.over()
        self._back()

    async def _on_closed(self) -> None:
        self._fail(f"the NATS connection was closed: {self._client.last_error}")

    def _fail(self, why: str) -> None:
        if not self.gone.done():
            self.gone.set_exception(ConnectionLost(why))


def check_credentials(path: Path) -> None:
    """Raise InvalidConfiguration for a file in which nats-py would look for a key for ever."""
    try:
        credentials = path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        why = f"{path} can't be read: {problem.strerror}"
    else:
        if is_credentials_file(credentials):
            return
        why = f"{path} holds no user JWT and seed"
    raise InvalidConfiguration(
        "nats.credentials_file", why, expected="a file as `nsc generate creds` writes"
    )
