"""What the launch protocol costs, against raw nats-py request/reply in the same run.

The raw side: one echo node, 300 bytes, and once the launch request as it is, headers too. The
protocol side: the functions' walk and bus, and a real agent with its journal, that lets simulated
guests run. DynamoDB is left out on both.

Throughput is measured with IN_FLIGHT workers that each ask again at once, which suits nats-py best:
what they ask leaves in few writes. `own_tasks`: with a task for each request instead, as many at
once, on both sides. `accepting`: with guests whose boots cost nothing, since what a boot costs is
its driver's, and comes after the answer.
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
    from collections.abc import Awaitable, Callable

    from fleetcast.local.nats_server import NatsServer

IN_FLIGHT: Final = 128
THROUGHPUT_CALLS: Final = 6_000
SERIAL_CALLS: Final = 1_000
_PAYLOAD: Final = b"x" * 300


@dataclass(frozen=True, kw_only=True)
class _Latency:
    p50_s: float
    p99_s: float


@dataclass(frozen=True, kw_only=True)
class _Raw:
    """What nats-py does by itself. Rates are a second."""

    rate: float
    same_message_rate: float
    own_tasks_rate: float
    serial: _Latency
    refusal: _Latency


@dataclass(frozen=True, kw_only=True)
class _Launches:
    """What launching does. Rates are a second."""

    rate: float
    own_tasks_rate: float
    accepting_rate: float
    serial: _Latency
    refusal: _Latency


async def run() -> None:
    """Measure both sides and publish the ratios."""
    with nats_server() as server:
        raw = await _measure_raw(server)
        ours = await _measure_launches(server)
    publish(
        "dispatch",
        [
            Figure(
                key="throughput_ratio",
                value=round(ours.rate / raw.rate, 3),
                about=f"{ours.rate:.0f} launches/s / {raw.rate:.0f} raw, {IN_FLIGHT} in flight",
            ),
            Figure(
                key="throughput_ratio_same_message",
                value=round(ours.rate / raw.same_message_rate, 3),
                about=f"against {raw.same_message_rate:.0f} raw with the launch's own bytes and "
                "headers",
            ),
            Figure(
                key="throughput_ratio_own_tasks",
                value=round(ours.own_tasks_rate / raw.own_tasks_rate, 3),
                about=f"{ours.own_tasks_rate:.0f} / {raw.own_tasks_rate:.0f}, each request a task",
            ),
            Figure(
                key="throughput_ratio_accepting",
                value=round(ours.accepting_rate / raw.rate, 3),
                about=f"{ours.accepting_rate:.0f} launches/s, with guests that boot at no cost",
            ),
            _ratio("serial_p50_ratio", ours.serial.p50_s, raw.serial.p50_s, "one after the other"),
            _ratio("serial_p99_ratio", ours.serial.p99_s, raw.serial.p99_s, "the slowest of these"),
            _ratio("refusal_p50_ratio", ours.refusal.p50_s, raw.refusal.p50_s, "nobody has room"),
        ],
    )


async def _measure_raw(server: NatsServer) -> _Raw:
    headers = LaunchHeaders(
        launch_id="r-00000001", attempt=1, sent_at_ms=0, expires_at_ms=0
    ).encode()
    message = messages.encode(request_for(0))
    async with running_nodes("echo", [server], count=1, slots=0):
        connection = await nats.connect(server.url)

        async def echo(_: int) -> None:
            await connection.request(ECHO_SUBJECT, _PAYLOAD, timeout=5)

        async def echo_launch(_: int) -> None:
            await connection.request(ECHO_SUBJECT, message, timeout=5, headers=dict(headers))

        async def ask_nobody(_: int) -> None:
            with contextlib.suppress(nats.errors.NoRespondersError):
                await connection.request("bench.nobody", _PAYLOAD, timeout=5)

        raw = _Raw(
            rate=await _rate(echo),
            same_message_rate=await _rate(echo_launch),
            own_tasks_rate=await _rate_of_tasks(echo),
            serial=await _serial(echo),
            refusal=await _serial(ask_nobody),
        )
        await connection.close()
    return raw


async def _measure_launches(server: NatsServer) -> _Launches:
    tally = Tally()
    numbers = count()
    async with bus_to(server.url) as bus:

        async def launch(_: int) -> None:
            await launch_one(bus, next(numbers), tally)

        slots = 2 * THROUGHPUT_CALLS + SERIAL_CALLS
        async with running_nodes("tokens", [server], count=1, slots=slots):
            rate = await _rate(launch)
            own_tasks_rate = await _rate_of_tasks(launch)
            serial = await _serial(launch)
        refusal = await _serial(launch)
        async with running_nodes("accepting", [server], count=1, slots=THROUGHPUT_CALLS):
            accepting_rate = await _rate(launch)
    if (tally.launched, tally.refused) != (slots + THROUGHPUT_CALLS, SERIAL_CALLS):
        raise RuntimeError(f"{slots + THROUGHPUT_CALLS} launches fit, but {tally}")
    return _Launches(
        rate=rate,
        own_tasks_rate=own_tasks_rate,
        accepting_rate=accepting_rate,
        serial=serial,
        refusal=refusal,
    )


async def _rate(call: Callable[[int], Awaitable[None]]) -> float:
    """Return calls per second with IN_FLIGHT of them under way."""
    numbers = iter(range(THROUGHPUT_CALLS))

    async def worker() -> None:
        for number in numbers:
            await call(number)

    began_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return THROUGHPUT_CALLS / (time.perf_counter() - began_s)


async def _rate_of_tasks(call: Callable[[int], Awaitable[None]]) -> float:
    """Return calls per second, each in a task of its own, IN_FLIGHT of them at once."""
    may_begin = asyncio.Semaphore(IN_FLIGHT)

    async def one(number: int) -> None:
        async with may_begin:
            await call(number)

    began_s = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(THROUGHPUT_CALLS)))
    return THROUGHPUT_CALLS / (time.perf_counter() - began_s)


async def _serial(call: Callable[[int], Awaitable[None]]) -> _Latency:
    """Return how long calls take, one after the other."""
    took_s: list[float] = []
    for number in range(SERIAL_CALLS):
        began_s = time.perf_counter()
        await call(number)
        took_s.append(time.perf_counter() - began_s)
    return _Latency(p50_s=statistics.median(took_s), p99_s=statistics.quantiles(took_s, n=100)[-1])


def _ratio(key: str, ours_s: float, raw_s: float, about: str) -> Figure:
    return Figure(
        key=key,
        value=round(ours_s / raw_s, 2),
        about=f"{about}: {ours_s * 1e6:.0f} us / {raw_s * 1e6:.0f} us raw",
    )
