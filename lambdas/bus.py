"""The functions' side of NATS: one connection a region, kept across invocations.

A request ends in one of four ways, and only one of them means "nobody has room":

    reply          an agent's answer
    NoResponders   the region's server says that nobody listens to this subject
    Unreachable    the server could not be reached; the request was certainly not sent
    NoAnswer       unknown: it was sent, and may have been acted on

Runs on one event loop for the whole process: a connection made under another loop never answers.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.client import Client, RawCredentials

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lambdas.settings import Region

_CONNECT_TIMEOUT_S: Final = 2
# A frozen function misses the server's pings; after this long the socket must prove itself.
_PROVE_AFTER_IDLE_S: Final = 30.0
_PROVE_TIMEOUT_S: Final = 0.25


class RegionError(FleetcastError):
    """A region gave no reply to a request."""

    def __init__(self, region: str, why: str) -> None:
        self.region = region
        super().__init__(f"region {region}: {why}")


class NoResponders(RegionError):
    """Nobody in the region listens to the subject: for a launch, nobody has room."""


class Unreachable(RegionError):
    """The region's NATS could not be reached; nothing was sent."""


class NoAnswer(RegionError):
    """The request was sent and not answered in time: it may have been acted on."""


class _Link:
    def __init__(self) -> None:
        self.connecting = asyncio.Lock()
        self.client: Client | None = None
        self.used_at_s = 0.0


class Bus:
    """Asks regions over NATS.

    credentials: returns the text of a NATS credentials file by its secret's name; called when a
    connection is made.
    """

    def __init__(
        self,
        regions: Mapping[str, Region],
        credentials: Callable[[str], str],
    ) -> None:
        self._regions = regions
        self._credentials = credentials
        self._links = {name: _Link() for name in regions}

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Send a request to a region and return the first reply.

        Raises NoResponders, Unreachable or NoAnswer.
        """
        client = await self._client(region)
        try:
            message = await client.request(
                subject,
                payload,
                timeout=timeout_s,
                headers=dict(headers) if headers else None,
            )
        except nats.errors.NoRespondersError as error:
            raise NoResponders(region, "nobody listens") from error
        except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError) as error:
            raise Unreachable(region, "the connection to NATS is closed") from error
        except (nats.errors.Error, OSError) as error:
            raise NoAnswer(region, f"no answer within {timeout_s:g} s") from error
        return message.data

    async def close(self) -> None:
        """Close every connection."""
        for link in self._links.values():
            if link.client is not None:
                await link.client.close()

    async def _client(self, region: str) -> Client:
        link = self._links[region]
        async with link.connecting:
            now_s = time.monotonic()
            idle_s = now_s - link.used_at_s
            link.used_at_s = now_s
            if link.client is not None and link.client.is_connected:
                if idle_s < _PROVE_AFTER_IDLE_S or await _answers(link.client):
                    return link.client
                await link.client.close()
            link.client = await self._connect(region)
            return link.client

    async def _connect(self, region: str) -> Client:
        settings = self._regions[region]
        secret = settings.nats_credentials_secret
        client = Client()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):  # nats-py can hang in a handshake
                await client.connect(
                    settings.nats_url,
                    name="fleetcast-run-instances",
                    user_credentials=RawCredentials(self._credentials(secret)) if secret else None,
                    connect_timeout=_CONNECT_TIMEOUT_S,
                    # A client that reconnects sends what it has buffered, long after the caller
                    # has given up. The next request makes a new connection instead.
                    allow_reconnect=False,
                    error_cb=_ignore,
                )
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise Unreachable(region, f"can't connect to NATS: {error!r}") from error
        return client


async def _answers(client: Client) -> bool:
    try:
        await client.flush(_PROVE_TIMEOUT_S)  # type: ignore[arg-type] # seconds; annotated int
    except (nats.errors.Error, OSError):
        return False
    return True


async def _ignore(_: Exception) -> None:
    """Drop what nats-py reports aside: the request that it concerns fails by itself."""
