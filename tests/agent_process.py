"""A real agent process, and a requester that speaks to it as the functions do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import nats
import nats.errors

from fleetcast import messages
from fleetcast.agent.tokens import SPARE_TOKENS
from fleetcast.subjects import (
    NodeAction,
    RegionAction,
    launch_subject,
    node_subject,
    region_subject,
)
from tests.agent_parts import instance_id, launch_headers, launch_request
from tests.eventually import eventually

if TYPE_CHECKING:
    import signal
    from types import TracebackType

    from nats.aio.client import Client

    from tests.nats_process import NatsProcess, ServerSubscription

REGION: Final = "us-east-1"
ZONE: Final = "us-east-1a"
NODE: Final = "n1"
MEDIUM: Final = launch_subject(REGION, "t3.medium")
MEDIUM_IN_ZONE: Final = launch_subject(REGION, "t3.medium", ZONE)
LARGEST: Final = launch_subject(REGION, "t3.2xlarge")
_ROOT: Final = Path(__file__).parents[1]


class AgentProcess:
    """One `fleetcast-agent run`. config: its settings. logs: its lines so far."""

    def __init__(self, folder: Path, nats_url: str, **changed: object) -> None:
        self.logs: list[dict[str, Any]] = []
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        settings = {
            "node": NODE,
            "region": REGION,
            "zone": ZONE,
            "state_dir": str(folder / "state"),
            "driver": "simulated",
            "families": ["t3"],
            "nats.url": nats_url,
            "capacity.vcpu": 8,
            "capacity.memory_mib": 32_768,
        }
        # A JSON string, number or list of strings is TOML too.
        lines = [f"{key} = {json.dumps(value)}" for key, value in (settings | changed).items()]
        self.config = folder / "agent.toml"
        self.config.write_text("\n".join(lines), encoding="utf-8")

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    async def start(self) -> None:
        """Start it, and don't wait."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-B", "-m", "fleetcast.agent", "run", "--config", self.config),
            cwd=_ROOT,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(_ROOT)},
        )
        self.logs.clear()
        self._reading = asyncio.create_task(self._read_logs())

    async def __aenter__(self) -> Self:
        await self.start()
        await self.says("agent ready")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.kill()

    async def _read_logs(self) -> None:
        assert self._process
        assert self._process.stderr
        async for line in self._process.stderr:
            self.logs.append(json.loads(line))  # a line that is no JSON is a bug, too

    async def says(self, phrase: str) -> dict[str, Any]:
        """Wait until it has logged that, and return the line."""

        async def line() -> dict[str, Any] | None:
            assert self._process
            if self._process.returncode is not None:
                await self.exit_code()
            found = [one for one in self.logs if one["message"] == phrase]
            assert found or self._process.returncode is None, self.logs
            return found[-1] if found else None

        found = await eventually(line)
        assert found
        return found

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def exit_code(self) -> int:
        """Wait until it has ended and all its lines are read."""
        assert self._process
        assert self._reading
        await asyncio.wait_for(self._process.wait(), timeout=20)
        await self._reading
        assert self._process.returncode is not None
        return self._process.returncode

    async def kill(self) -> None:
        """End it as a crash does."""
        if self._process and self._process.returncode is None:
            self._process.kill()
        await self.exit_code()


class Requester:
    """What asks agents, as a function does."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, url: str) -> Self:
        return cls(await nats.connect(url, reconnect_time_wait=0.05, max_reconnect_attempts=-1))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.connection.close()

    async def reaches_the_node_again(self) -> None:
        """Wait until its node answers; the client may not even know yet that it was cut off."""

        async def answered() -> bool:
            try:
                await self.capacity()
            except (nats.errors.Error, OSError):
                return False
            return True

        await eventually(answered)

    async def launch(
        self,
        *numbers: int,
        launch: int | None = None,
        attempt: int = 1,
        instance_type: str = "t3.medium",
        zone: str | None = None,
        lasts_ms: int = 5_000,
        timeout_s: float = 5,
        hold_ms: int | None = None,
    ) -> messages.LaunchReply:
        """Raises nats.errors.NoRespondersError when nobody has room."""
        answer = await self.connection.request(
            launch_subject(REGION, instance_type, zone),
            launch_request(*numbers, instance_type=instance_type, hold_ms=hold_ms),
            timeout=timeout_s,
            headers=launch_headers(
                launch if launch is not None else numbers[0],
                attempt=attempt,
                expires_at_ms=time.time_ns() // 1_000_000 + lasts_ms,
            ),
        )
        return messages.decode_launch_reply(answer.data)

    async def accepted(self, *numbers: int, **how: Any) -> tuple[str, ...]:  # noqa: ANN401 - as launch
        reply = await self.launch(*numbers, **how)
        assert isinstance(reply, messages.Accepted), reply
        return reply.instance_ids

    async def nobody_has_room(self, instance_type: str = "t3.medium") -> bool:
        """Ask for room without taking any: such a request has expired before it arrives."""
        try:
            reply = await self.launch(999, instance_type=instance_type, lasts_ms=-1_000)
        except nats.errors.NoRespondersError:
            return True
        assert isinstance(reply, messages.Rejected), reply
        return False

    async def instances(self, action: NodeAction, *numbers: int) -> dict[str, str]:
        ids = tuple(instance_id(number) for number in numbers)
        return _states(await self.ask_node(action, messages.InstancesRequest(instance_ids=ids)))

    async def order(
        self, action: NodeAction | RegionAction, request: messages.AttemptRequest
    ) -> dict[str, str]:
        """Commit, release or cancel; return the states in the answer."""
        if isinstance(action, RegionAction):
            return _states(await self._ask_region(action, request))
        return _states(await self.ask_node(action, request))

    async def ask_node(
        self, action: NodeAction, request: messages.Message, *, timeout_s: float = 5
    ) -> bytes:
        """Return the node's answer. Raises nats.errors.TimeoutError without one."""
        answer = await self.connection.request(
            node_subject(REGION, NODE, action), messages.encode(request), timeout=timeout_s
        )
        return bytes(answer.data)

    async def inventory(self) -> dict[str, str]:
        return _states(await self._ask_region(RegionAction.INVENTORY))

    async def capacity(self) -> messages.CapacityReply:
        answer = await self._ask_region(RegionAction.DESCRIBE_CAPACITY)
        return messages.decode(answer, messages.CapacityReply)

    async def _ask_region(
        self, action: RegionAction, request: messages.Message | None = None
    ) -> bytes:
        payload = messages.encode(request or messages.RegionRequest())
        answer = await self.connection.request(region_subject(REGION, action), payload, timeout=5)
        return bytes(answer.data)


def _states(payload: bytes) -> dict[str, str]:
    reply = messages.decode(payload, messages.InstancesReply)
    return {report.instance_id: report.state for report in reply.instances}


async def launch_subscriptions(server: NatsProcess) -> dict[str, list[ServerSubscription]]:
    """Return the launch subscriptions of the agent as the server holds them."""
    by_subject = await server.subscriptions(f"fleetcast-agent {REGION} {NODE}")
    return {
        subject: held
        for subject, held in by_subject.items()
        if subject.startswith("ec2.RunInstances.")
    }


async def promised_room(server: NatsProcess) -> dict[str, int]:
    """Return the room promised at the server by subject; -1 for one that is not settled."""
    held = await launch_subscriptions(server)
    return {
        subject: subs[0].tokens - SPARE_TOKENS if len(subs) == 1 and subs[0].max else -1
        for subject, subs in held.items()
    }
