"""What the launch protocol costs, against raw nats-py request/reply in the same run.

The raw side: one echo node, 300 bytes, and once the launch request as it is, headers too. The
protocol side: the functions' walk and bus, and a real agent with its journal, that lets simulated
guests run. DynamoDB is left out on both.

Throughput is measured with IN_FLIGHT workers that each ask again at once, which suits nats-py best:
what they ask leaves in few writes. `own_tasks`: with a task for each request instead, as many at
once, on both sides. `accepting`: with guests whose boots cost nothing, since what a boot costs is
its driver's, and comes after the answer. Both sides take turns, and a ratio is the median of what
the ROUNDS gave: one by itself is off by a third when the machine does anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

import nats
import nats.errors

from bench.launcher import Tally, bus_to, launch_one, request_for
from bench.nodes import ECHO_SUBJECT, running_nodes
from bench.report import Figure, publish
from fleetcast import messages
from fleetcast.local.nats_server import nats_server
from fleetcast.messages import LaunchHeaders

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nats.aio.client import Client

    from lambdas.bus import Bus

IN_FLIGHT: Final = 128
ROUNDS: Final = 5
THROUGHPUT_CALLS: Final = 6_000
SERIAL_CALLS: Final = 1_000
_PAYLOAD: Final = b"x" * 300


@dataclass(frozen=True, kw_only=True)
class _Latency:
    p50_s: float
    p99_s: float


class _Raw:
    """What nats-py does by itself, on a connection."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._message = messages.encode(request_for(0))
        self._headers = LaunchHeaders(
            launch_id="r-00000001", attempt=1, sent_at_ms=0, expires_at_ms=0
        ).encode()

    async def echo(self) -> None:
        await self._connection.request(ECHO_SUBJECT, _PAYLOAD, timeout=5)

    async def echo_launch(self) -> None:
        headers = dict(self._headers)
        await self._connection.request(ECHO_SUBJECT, self._message, timeout=5, headers=headers)

    async def ask_nobody(self) -> None:
        with contextlib.suppress(nats.errors.NoRespondersError):
            await self._connection.request("bench.nobody", _PAYLOAD, timeout=5)


class _Launching:
    """Launches, each of another instance."""

    def __init__(self, bus: Bus) -> None:
        self.tally = Tally()
        self._bus = bus
        self._numbers = count()

    async def launch(self) -> None:
        await launch_one(self._bus, next(self._numbers), self.tally)


async def run() -> None:
    """Measure both sides and publish the ratios."""
    with nats_server() as server:
        async with running_nodes("echo", [server], count=1, slots=0), bus_to(server.url) as bus:
            connection = await nats.connect(server.url)
            raw, ours = _Raw(connection), _Launching(bus)
            slots = 2 * ROUNDS * THROUGHPUT_CALLS + SERIAL_CALLS
            async with running_nodes("tokens", [server], count=1, slots=slots):
                figures = [*await _throughputs(raw, ours), *await _latencies(raw, ours)]
            if ours.tally.launched != slots:
                raise RuntimeError(f"{slots} launches for {slots} slots, but {ours.tally}")
            refused, nobody = await _serial(ours.launch), await _serial(raw.ask_nobody)
            figures.append(_ratio("refusal_p50_ratio", refused.p50_s, nobody.p50_s, "no room"))
            slots = ROUNDS * THROUGHPUT_CALLS
            async with running_nodes("accepting", [server], count=1, slots=slots):
                rounds = [(await _rate(ours.launch), await _rate(raw.echo)) for _ in range(ROUNDS)]
            about = "with guests that boot at no cost"
            figures.append(_rates_ratio("throughput_ratio_accepting", rounds, about))
            await connection.close()
    publish("dispatch", figures)


async def _throughputs(raw: _Raw, ours: _Launching) -> list[Figure]:
    plain: list[tuple[float, float]] = []
    same_message: list[tuple[float, float]] = []
    own_tasks: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        raw_rate, rate = await _rate(raw.echo), await _rate(ours.launch)
        plain.append((rate, raw_rate))
        same_message.append((rate, await _rate(raw.echo_launch)))
        own_tasks.append((await _rate_of_tasks(ours.launch), await _rate_of_tasks(raw.echo)))
    about = "against the launch's own bytes and headers, raw"
    return [
        _rates_ratio("throughput_ratio", plain, f"{IN_FLIGHT} in flight"),
        _rates_ratio("throughput_ratio_same_message", same_message, about),
        _rates_ratio("throughput_ratio_own_tasks", own_tasks, "each request a task"),
    ]


async def _latencies(raw: _Raw, ours: _Launching) -> list[Figure]:
    launch, echo = await _serial(ours.launch), await _serial(raw.echo)
    return [
        _ratio("serial_p50_ratio", launch.p50_s, echo.p50_s, "one launch after the other"),
        _ratio("serial_p99_ratio", launch.p99_s, echo.p99_s, "the slowest hundredth of these"),
    ]


async def _rate(call: Callable[[], Awaitable[None]]) -> float:
    """Return calls per second with IN_FLIGHT of them under way."""
    numbers = iter(range(THROUGHPUT_CALLS))

    async def worker() -> None:
        for _ in numbers:
            await call()

    began_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return THROUGHPUT_CALLS / (time.perf_counter() - began_s)


async def _rate_of_tasks(call: Callable[[], Awaitable[None]]) -> float:
    """Return calls per second, each in a task of its own, IN_FLIGHT of them at once."""
    may_begin = asyncio.Semaphore(IN_FLIGHT)

    async def one() -> None:
        async with may_begin:
            await call()

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(THROUGHPUT_CALLS)))
    return THROUGHPUT_CALLS / (time.perf_counter() - began_s)


async def _serial(call: Callable[[], Awaitable[None]]) -> _Latency:
    """Return how long calls take, one after the other."""
    took_s: list[float] = []
    for _ in range(SERIAL_CALLS):
        began_s = time.perf_counter()
        await call()
        took_s.append(time.perf_counter() - began_s)
    return _Latency(p50_s=statistics.median(took_s), p99_s=statistics.quantiles(took_s, n=100)[-1])


def _rates_ratio(key: str, rounds: Sequence[tuple[float, float]], about: str) -> Figure:
    """Return the median of the ratios of ours to raw, calls a second."""
    ours, raw = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    return Figure(
        key=key,
        value=round(statistics.median(rate / raw_rate for rate, raw_rate in rounds), 3),
        about=f"{about}: {ours:.0f} launches/s / {raw:.0f} raw",
    )


def _ratio(key: str, ours_s: float, raw_s: float, about: str) -> Figure:
    return Figure(
        key=key,
        value=round(ours_s / raw_s, 2),
        about=f"{about}: {ours_s * 1e6:.0f} us / {raw_s * 1e6:.0f} us raw",
    )
