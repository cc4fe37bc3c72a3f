"""What the launch protocol costs, against raw nats-py request/reply in the same run.

The raw side: one echo node, 300 bytes. The protocol side: the functions' walk and bus, and a real
agent with its journal. DynamoDB is left out on both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Final

import nats
import nats.errors

from bench.launcher import Tally, bus_to, launch_one
from bench.nodes import ECHO_SUBJECT, running_nodes
from bench.report import Figure, publish
from fleetcast.local.nats_server import nats_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

IN_FLIGHT: Final = 128
THROUGHPUT_CALLS: Final = 6_000
SERIAL_CALLS: Final = 1_000
_PAYLOAD: Final = b"x" * 300


async def run() -> None:
    """Measure both sides and publish the ratios."""
    with nats_server() as server:
        async with running_nodes("echo", [server], count=1, slots=0):
            connection = await nats.connect(server.url)

            async def echo(_: int) -> None:
                await connection.request(ECHO_SUBJECT, _PAYLOAD, timeout=5)

            async def ask_nobody(_: int) -> None:
                try:
                    await connection.request("bench.nobody", _PAYLOAD, timeout=5)
                except nats.errors.NoRespondersError:
                    return

            raw_rate = await _rate(echo, THROUGHPUT_CALLS)
            raw_p50_s = await _serial_p50_s(echo)
            raw_refusal_p50_s = await _serial_p50_s(ask_nobody)
            await connection.close()

        tally = Tally()
        slots = THROUGHPUT_CALLS + SERIAL_CALLS
        async with bus_to(server.url) as bus:

            async def launch(number: int) -> None:
                await launch_one(bus, number, tally)

            async with running_nodes("tokens", [server], count=1, slots=slots):
                rate = await _rate(launch, THROUGHPUT_CALLS)
                p50_s = await _serial_p50_s(lambda number: launch(THROUGHPUT_CALLS + number))
            if tally.launched != slots:
                raise RuntimeError(f"{slots} launches for {slots} slots, but {tally}")
            refusal_p50_s = await _serial_p50_s(launch)
    publish(
        "dispatch",
        [
            Figure(
                key="throughput_ratio",
                value=round(rate / raw_rate, 3),
                about=f"{rate:.0f} launches/s / {raw_rate:.0f} raw, {IN_FLIGHT} in flight",
            ),
            Figure(
                key="serial_p50_ratio",
                value=round(p50_s / raw_p50_s, 2),
                about=f"{p50_s * 1e6:.0f} us a launch / {raw_p50_s * 1e6:.0f} us a raw request",
            ),
            Figure(
                key="refusal_p50_ratio",
                value=round(refusal_p50_s / raw_refusal_p50_s, 2),
                about=f"{refusal_p50_s * 1e6:.0f} us / {raw_refusal_p50_s * 1e6:.0f} us raw",
            ),
        ],
    )


async def _rate(call: Callable[[int], Awaitable[None]], calls: int) -> float:
    """Return calls per second with IN_FLIGHT of them under way."""
    numbers = iter(range(calls))

    async def worker() -> None:
        for number in numbers:
            await call(number)

    began_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return calls / (time.perf_counter() - began_s)


async def _serial_p50_s(call: Callable[[int], Awaitable[None]]) -> float:
    took_s: list[float] = []
    for number in range(SERIAL_CALLS):
        began_s = time.perf_counter()
        await call(number)
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s)
