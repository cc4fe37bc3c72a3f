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
import contextlib
import logging
import math
import os
import time
from typing import TYPE_CHECKING, Final

import nats.errors
import nkeys  # type: ignore[import-untyped] # it ships no types
from nats.aio.client import RawCredentials

from fleetcast.errors import FleetcastError
from fleetcast.nats_access import is_credentials_file
from lambdas.bus_client import BusClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lambdas.settings import Region

_log = logging.getLogger(__name__)

_CREDENTIALS_TIMEOUT_S: Final = 2
_CONNECT_TIMEOUT_S: Final = 2
# A frozen function misses the server's pings; after this long the socket must prove itself.
_PROVE_AFTER_IDLE_S: Final = 30.0
_PROVE_TIMEOUT_S: Final = 0.25
_CLOSE_TIMEOUT_S: Final = 0.25
_HEARD_LATELY_S: Final = 5.0
# No server is gone and back, nor a function frozen and woken, in so short a time.
_JUST_USED_S: Final = 0.005
# How often the loop must turn until nats-py has acted on what waits in the socket (it takes 3).
_TURNS_TO_HEAR: Final = 5


class RegionError(FleetcastError):
    """A region gave no reply to a request."""

    def __init__(self, region: str, why: str) -> None:
        self.region = region
        self.why = why
        super().__init__(f"region {region}: {why}")


class NoResponders(RegionError):
    """Nobody in the region listens to the subject: for a launch, nobody has room.

    heard_lately: whether somebody has answered over this connection within some seconds. If not,
    the server may have been restarted, and its agents not be back yet.
    """

    def __init__(self, region: str, why: str, *, heard_lately: bool = True) -> None:
        self.heard_lately = heard_lately
        super().__init__(region, why)


class Unreachable(RegionError):
    """The region's NATS could not be reached; nothing was sent."""


class NoAnswer(RegionError):
    """The request was sent and not answered in time: it may have been acted on."""


class CredentialsUnreadable(FleetcastError):
    """A region's NATS credentials can't be had now."""


class _Link:
    """One region's connection. readying: what makes sure that it works, while that is under way."""

    def __init__(self) -> None:
        self.client: BusClient | None = None
        self.readying: asyncio.Task[BusClient] | None = None
        self.used_at_s = -math.inf
        self.heard_at_s = -math.inf  # somebody, over this connection

    def was_heard(self, now_s: float) -> None:
        """Note that somebody has answered over this connection."""
        self.heard_at_s = self.used_at_s = now_s

    def is_ready(self, readying: asyncio.Task[BusClient]) -> None:
        """Note that it works, or doesn't: the next request makes sure again."""
        self.readying = None
        if not readying.cancelled():
            readying.exception()  # told to those who wait, if any still does


class Bus:
    """Asks regions over NATS.

    credentials: returns the text of a NATS credentials file by its secret's name, or raises
    CredentialsUnreadable; called, on a thread, when a connection is made. client_name: what the
    servers' monitoring shows. clock_s: monotonic seconds.
    """

    def __init__(
        self,
        regions: Mapping[str, Region],
        credentials: Callable[[str], str],
        *,
        client_name: str = "fleetcast-run-instances",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._regions = regions
        self._credentials = credentials
        self._client_name = client_name
        self._clock_s = clock_s
        self._links = {name: _Link() for name in regions}

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        """Send a request to a region and return the first reply.

        timeout_s: how long to wait once it is sent; connecting may take some 2.5 s before that,
        and reading credentials 2 s more.
        headers: makes the headers when the request leaves, so that an expiry among them counts
        from then. Raises NoResponders, Unreachable or NoAnswer.
        """
        client = await self._client(region)
        try:
            # Several may come before anybody has looked: all agents of a region answer at once.
            reply, *_ = await client.ask(
                subject, payload, timeout_s=timeout_s, headers=headers() if headers else None
            )
        except (nats.errors.Error, OSError) as error:
            raise self._meaning_of(error, region, timeout_s) from error
        self._links[region].was_heard(self._clock_s())
        return reply

    async def gather(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        expected: int | None = None,
    ) -> list[bytes]:
        """Send a request to all who listen in a region; return their replies as they came.

        expected: with so many replies it is done; None: it waits the whole time, for nobody knows
        how many will come. There may be fewer: who is silent is for the caller to find out.
        Raises as `ask`, NoAnswer if nobody at all has replied in time.
        """
        client = await self._client(region)
        try:
            replies = await client.ask(subject, payload, timeout_s=timeout_s, wanted_n=expected)
        except (nats.errors.Error, OSError) as error:
            raise self._meaning_of(error, region, timeout_s) from error
        self._links[region].was_heard(self._clock_s())
        return replies

    async def close(self) -> None:
        """Close every connection, also those that are being made."""
        for link in self._links.values():
            if link.readying is not None:
                link.readying.cancel()
                await asyncio.wait([link.readying])
            if link.client is not None:
                await _close(link.client)

    def _meaning_of(self, error: Exception, region: str, timeout_s: float) -> RegionError:
        """Return what an error of NATS, or of its socket, means for a request."""
        link = self._links[region]
        match error:
            case nats.errors.NoRespondersError():
                silent_s = self._clock_s() - link.heard_at_s
                return NoResponders(
                    region, "nobody listens", heard_lately=silent_s < _HEARD_LATELY_S
                )
            case (
                nats.errors.ConnectionClosedError()
                | nats.errors.MaxPayloadError()
                | nats.errors.OutboundBufferLimitError()
            ):
                return Unreachable(region, f"the request can't be sent: {error}")
        link.used_at_s = -math.inf  # the socket may be the reason
        return NoAnswer(region, f"no answer within {timeout_s:g} s")

    async def _client(self, region: str) -> BusClient:
        link = self._links[region]
        now_s = self._clock_s()
        if link.client and link.client.is_connected and now_s - link.used_at_s < _JUST_USED_S:
            link.used_at_s = now_s
            return link.client
        if link.readying is None:
            link.readying = asyncio.create_task(self._ready(region, link))
            link.readying.add_done_callback(link.is_ready)
        # One for all who ask meanwhile: a crowd must not try a region that hangs one after the
        # other, nor go out request by request. Shielded, for one of them may be called off.
        return await asyncio.shield(link.readying)

    async def _ready(self, region: str, link: _Link) -> BusClient:
        """Return a connection that works, a new one if need be."""
        if link.client is not None and not await self._works(link, link.client):
            await _close(link.client)
            link.client = None
        if link.client is None:
            link.heard_at_s = -math.inf
            link.client = await self._connect(region)
        link.used_at_s = self._clock_s()
        return link.client

    async def _works(self, link: _Link, client: BusClient) -> bool:
        # The loop stands still between two invocations. What the server said meanwhile, goodbye
        # above all, comes before the next request.
        for _ in range(_TURNS_TO_HEAR):
            await asyncio.sleep(0)
        if not client.is_connected:
            return False
        return self._clock_s() - link.used_at_s < _PROVE_AFTER_IDLE_S or await _answers(client)

    async def _connect(self, region: str) -> BusClient:
        settings = self._regions[region]
        credentials = await self._read_credentials(region)
        client = BusClient()
        problems: list[Exception] = []

        async def note(problem: Exception) -> None:
            if client.is_connected:
                # Only here does NATS say that it refuses a subject: the request isn't answered.
                _log.warning("NATS error", extra={"region": region, "why": repr(problem)})
            else:
                problems.append(problem)

        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):  # nats-py can hang in a handshake
                await client.connect(
                    settings.nats_url,
                    name=self._client_name,
                    user_credentials=credentials,
                    connect_timeout=_CONNECT_TIMEOUT_S,
                    # A client that reconnects sends what it has buffered, long after the caller
                    # has given up. The next request makes a new connection instead.
                    allow_reconnect=False,
                    # These rule the first connection too: by default it is tried for minutes.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    error_cb=note,
                    closed_cb=client.connection_lost,
                )
                await client.listen()
        except (nats.errors.Error, nkeys.NkeysError, OSError) as error:  # TimeoutError too
            await _close(client)
            reason = problems[-1] if problems else error
            _log.warning("can't connect", extra={"region": region, "why": repr(reason)})
            raise Unreachable(region, f"can't connect to NATS: {_in_words(reason)}") from error
        except asyncio.CancelledError:
            await _close(client)
            raise
        return client

    async def _read_credentials(self, region: str) -> RawCredentials | None:
        secret = self._regions[region].nats_credentials_secret
        if secret is None:
            return None
        try:
            async with asyncio.timeout(_CREDENTIALS_TIMEOUT_S):
                # On this thread, other regions' answers would come too late.
                text = await asyncio.to_thread(self._credentials, secret)
        except TimeoutError as error:
            raise Unreachable(region, f"secret {secret} can't be read: no answer") from error
        except CredentialsUnreadable as error:
            raise Unreachable(region, str(error)) from error
        if not is_credentials_file(text):
            raise Unreachable(region, f"secret {secret} holds no NATS credentials file")
        return RawCredentials(text)


def _in_words(problem: Exception) -> str:
    """Say what is wrong without addresses: clients are shown it."""
    if isinstance(problem, OSError) and problem.errno:
        return os.strerror(problem.errno).lower()
    return type(problem).__name__ if isinstance(problem, OSError) else str(problem)


async def _answers(client: BusClient) -> bool:
    try:
        await client.rtt(_PROVE_TIMEOUT_S)  # type: ignore[arg-type] # seconds; annotated int
    except (nats.errors.Error, OSError):
        return False
    return True


async def _close(client: BusClient) -> None:
    with contextlib.suppress(TimeoutError):  # a dead TLS connection says goodbye for half a minute
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await client.close()
