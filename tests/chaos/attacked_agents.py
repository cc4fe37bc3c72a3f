"""Real agents in a process of their own, that the test makes die, wait or be wrong about the time.

`python -m tests.chaos.attacked_agents '{…}'`, started by `nodes`. Nothing in the product knows of
it: what happens here is what the machine could do to an agent between two of its steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from fleetcast.agent.daemon import Agent
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.agent.ending_tasks import end_all_other_tasks
from fleetcast.agent.journal import Journal
from fleetcast.agent.settings import AgentSettings
from tests.chaos.world_clock import WorldClock

READY: Final = "agent ready"


class Attack(msgspec.Struct, frozen=True, kw_only=True):
    """Which agents to run, and what is done to them.

    clock: the file of the world's clock. skew_ms: how far theirs is ahead of it. dies: at which
    side of a write to the journal; dies_at_write: at which write, from 1. boots: whether guests
    ever come up.
    """

    agents: tuple[AgentSettings, ...]
    clock: str
    skew_ms: int = 0
    dies: Literal["before", "after"] | None = None
    dies_at_write: int = 1
    boots: bool = True


def _die_at_a_write(attack: Attack) -> None:
    write: Any = Journal.write
    numbers = itertools.count(1)

    async def dying(*what: Any, **how: Any) -> None:  # noqa: ANN401 - passed on
        is_last = next(numbers) == attack.dies_at_write
        if is_last and attack.dies == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await write(*what, **how)
        if is_last and attack.dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(Journal, "write", dying)  # noqa: B010 - mypy forbids the plain form


async def _never_up(*_: object) -> None:
    await asyncio.get_running_loop().create_future()


async def _serve(attack: Attack) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await asyncio.gather(*(Agent(settings).run(stop) for settings in attack.agents))
    finally:
        await end_all_other_tasks()


def _main(encoded: str) -> None:
    attack = msgspec.json.decode(encoded, type=Attack)
    clock = WorldClock(Path(attack.clock), skew_ms=attack.skew_ms)
    time.time, time.time_ns = clock.now_s, clock.now_ns
    if attack.dies:
        _die_at_a_write(attack)
    if not attack.boots:
        setattr(SimulatedDriver, "boot", _never_up)  # noqa: B010 - mypy forbids the plain form
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    asyncio.run(_serve(attack))


if __name__ == "__main__":
    _main(sys.argv[1])
