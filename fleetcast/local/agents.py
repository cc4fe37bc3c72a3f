"""The agents of a local stack: real ones, each a process of its own with its own state."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from fleetcast.local.fleet import write_agent_config
from fleetcast.local.stack_file import AgentEntry

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.local.fleet import NodeGroup
    from fleetcast.local.processes import Child, Processes

_START_DEADLINE_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class _Agent:
    entry: AgentEntry
    child: Child


class Agents:
    """Starts and stops agents.

    directory: each one's configuration and state, by node. images: what their guests boot from, in
    QEMU; None: guests are simulated.
    """

    def __init__(
        self, processes: Processes, *, directory: Path, log_dir: Path, images: Path | None
    ) -> None:
        self._processes = processes
        self._images = images
        self._directory = directory
        self._log_dir = log_dir
        self._by_node: dict[str, _Agent] = {}

    def start(self, group: NodeGroup, *, nats_url: str) -> None:
        """Start agents side by side; return when all serve. Raises ProcessFailed.

        A node that was stopped comes back with the state that it had.
        """
        agents = [
            self._start(node, zone, group, nats_url)
            for node, zone in zip(group.nodes, group.zones, strict=True)
        ]
        for agent in agents:
            ready = partial(_is_ready, agent.child.log)
            agent.child.wait_until(ready, within_s=_START_DEADLINE_S)
            self._by_node[agent.entry.node] = agent

    def kill(self, node: str) -> None:
        """End an agent as a crash does. Raises KeyError if there is none."""
        self._by_node.pop(node).child.kill()

    @property
    def entries(self) -> tuple[AgentEntry, ...]:
        """All that were started and not stopped."""
        return tuple(agent.entry for agent in self._by_node.values())

    def _start(self, node: str, zone: str | None, group: NodeGroup, nats_url: str) -> _Agent:
        home = self._directory / node
        home.mkdir(parents=True, exist_ok=True)
        config, state_dir = home / "agent.toml", home / "state"
        write_agent_config(
            config,
            node=node,
            region=group.region,
            zone=zone,
            size=group.size,
            nats_url=nats_url,
            state_dir=state_dir,
            images=self._images,
        )
        child = self._processes.start(
            f"agent {node}",
            [sys.executable, "-m", "fleetcast.agent", "run", "--config", config],
            log=self._log_dir / f"agent-{node}.log",
        )
        entry = AgentEntry(node=node, region=group.region, pid=child.pid, state_dir=str(state_dir))
        return _Agent(entry=entry, child=child)


def _is_ready(log: Path) -> bool:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(_message(line) == "agent ready" for line in lines)


def _message(line: str) -> object:
    """Return a log line's message; None for what is no JSON line, such as a traceback's."""
    try:
        return json.loads(line).get("message")
    except (ValueError, AttributeError):
        return None
