"""What the launch protocol costs, against raw nats-py request/reply in the same run.

The raw side: one echo node, 300 bytes, and once the launch request as it is, headers too. The
protocol side: the functions' walk and bus, and a real agent with its journal. DynamoDB is left out
on both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
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

            headers = LaunchHeaders(
                launch_id="r-00000001", attempt=1, sent_at_ms=0, expires_at_ms=0
            ).encode()
            message = messages.encode(request_for(0))

            async def echo_launch(_: int) -> None:
                await connection.request(ECHO_SUBJECT, message, timeout=5, headers=dict(headers))

            raw_rate = await _rate(echo, THROUGHPUT_CALLS)
            raw_launch_rate = await _rate(echo_launch, THROUGHPUT_CALLS)
            raw = await _serial(echo)
            raw_refusal = await _serial(ask_nobody)
            await connection.close()

        tally = Tally()
        slots = THROUGHPUT_CALLS + SERIAL_CALLS
        async with bus_to(server.url) as bus:

            async def launch(number: int) -> None:
                await launch_one(bus, number, tally)

            async with running_nodes("tokens", [server], count=1, slots=slots):
                rate = await _rate(launch, THROUGHPUT_CALLS)
                serial = await _serial(lambda number: launch(THROUGHPUT_CALLS + number))
            if tally.launched != slots:
                raise RuntimeError(f"{slots} launches for {slots} slots, but {tally}")
            refusal = await _serial(launch)
    publish(
        "dispatch",
        [
            Figure(
                key="throughput_ratio",
                value=round(rate / raw_rate, 3),
                about=f"{rate:.0f} launches/s / {raw_rate:.0f} raw, {IN_FLIGHT} in flight",
            ),
            Figure(
                key="throughput_ratio_same_message",
                value=round(rate / raw_launch_rate, 3),
                about=f"against {raw_launch_rate:.0f} raw with the launch's own bytes and headers",
            ),
            _ratio("serial_p50_ratio", serial.p50_s, raw.p50_s, "one launch after the other"),
            _ratio("serial_p99_ratio", serial.p99_s, raw.p99_s, "the slowest hundredth of these"),
            _ratio("refusal_p50_ratio", refusal.p50_s, raw_refusal.p50_s, "nobody has room"),
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


@dataclass(frozen=True, kw_only=True)
class _Latency:
    p50_s: float
    p99_s: float


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
