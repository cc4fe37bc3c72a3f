"""What goes wrong with NATS: in words, in the log, and as what ends the agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import TYPE_CHECKING, Final

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.client import Client

_log = logging.getLogger(__name__)

_REPEAT_EVERY_S: Final = 60
_CLOSE_WITHIN_S: Final = 5

NATS_IS_DOWN: Final = "NATS is down, trying on; guests run on"


class ConnectionLost(FleetcastError):
    """The NATS connection is gone for good, or refuses what the agent needs."""


class Troubles:
    """Logs what goes wrong with the connection: the first at once, then a line a minute.

    While a server is away the client tells the same each second. now_s: monotonic seconds.
    """

    def __init__(self, now_s: Callable[[], float], repeat_every_s: float = _REPEAT_EVERY_S) -> None:
        self._now_s = now_s
        self._repeat_every_s = repeat_every_s
        self._said_at_s: float | None = None
        self._unsaid_n = 0

    def heard(self, error: Exception) -> None:
        """Log it, or count it for the next line."""
        now_s = self._now_s()
        if self._said_at_s is not None and now_s - self._said_at_s < self._repeat_every_s:
            self._unsaid_n += 1
            return
        _log.warning("NATS error", extra={"why": told(error), "not_logged_before": self._unsaid_n})
        self._said_at_s, self._unsaid_n = now_s, 0

    def over(self) -> None:
        """Log the next one at once."""
        self._said_at_s, self._unsaid_n = None, 0


def is_out_of_reach(error: Exception) -> bool:
    """Return whether an attempt to connect failed as it does where no server is or answers."""
    return isinstance(error, OSError) and not isinstance(error, ssl.SSLError)


def told(error: Exception | None) -> str:
    """Return an error in words. A time-out has none of its own."""
    if isinstance(error, TimeoutError):
        return "it doesn't answer"
    return str(error) or repr(error)


async def close_in_time(connection: Client) -> None:
    """Close a connection, or leave it: nats-py waits for ever where a TLS handshake has failed."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(connection.close(), _CLOSE_WITHIN_S)
