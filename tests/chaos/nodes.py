"""The nodes of a test: real agents, some or many to a process, that are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fleetcast.agent.capacity.settings import CapacitySettings
from fleetcast.agent.settings import AgentSettings, NatsSettings
from tests.chaos.attacked_agents import READY, Attack
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetcast.capacity import Resources

_ROOT: Final = Path(__file__).parents[2]
_START_WITHIN_S: Final = 40.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node. url: of the NATS that its agent connects to."""

    name: str
    region: str
    url: str
    state_dir: Path
    total: Resources
    families: tuple[str, ...] = ("t3",)

    @property
    def journal(self) -> Path:
        return self.state_dir / "journal.sqlite"

    @property
    def guests(self) -> Path:
        return self.state_dir / "guests"

    def settings(self) -> AgentSettings:
        return AgentSettings(
            node=self.name,
            region=self.region,
            zone=f"{self.region}a",
            state_dir=str(self.state_dir),
            driver="simulated",
            families=self.families,
            nats=NatsSettings(url=self.url),
            capacity=CapacitySettings(vcpu=self.total.vcpu, memory_mib=self.total.memory_mib),
        )


class NodesProcess:
    """One process with the agents of some nodes. clock: the file of the world's clock."""

    def __init__(self, nodes: Sequence[Node], *, clock: Path, log: Path) -> None:
        self.nodes = tuple(nodes)
        self._clock = clock
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, **attack: Any) -> None:  # noqa: ANN401 - as Attack has it
        """Start it, or start it again, and wait until all its agents serve."""
        assert not self.is_alive
        options = Attack(
            agents=tuple(node.settings() for node in self.nodes), clock=str(self._clock), **attack
        )
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-B", "-m", "tests.chaos.attacked_agents"),
                msgspec.json.encode(options).decode(),
                cwd=_ROOT,
                stderr=log,
            )

        async def ready() -> bool:
            assert self.is_alive, self.told()
            return self.told().count(READY) == len(self.nodes)

        await eventually(ready, within_s=_START_WITHIN_S)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def told(self) -> str:
        """Return its log since it was started."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Stop it from doing anything, with its connections open."""
        self._signal(signal.SIGSTOP)
        assert self._process
        # It may go on for a moment.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process
        self._process.send_signal(number)

    async def died(self) -> None:
        """Wait until it has died of what was done to it."""
        assert self._process
        assert await asyncio.wait_for(self._process.wait(), timeout=20) == -signal.SIGKILL

    async def kill(self) -> None:
        """End it as a crash does, if it lives."""
        if self.is_alive:
            self._signal(signal.SIGKILL)
            await self.died()
