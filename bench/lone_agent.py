"""One real agent in a process of its own, seen from outside: its memory, its CPU, its answers."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import nats
import psutil

from fleetcast import messages
from fleetcast.local.conditions import wait_until
from fleetcast.local.qemu_guests import IMAGE_ID, end_guests
from fleetcast.subjects import (
    NodeAction,
    RegionAction,
    launch_subject,
    node_subject,
    region_subject,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from nats.aio.client import Client

NODE: Final = "n1"
REGION: Final = "bench-1"
_READY_WITHIN_S: Final = 60
_ANSWER_WITHIN_S: Final = 10.0


class LoneAgent:
    """Asks the agent what the functions ask."""

    def __init__(self, pid: int, connection: Client) -> None:
        self.pid = pid
        self._connection = connection

    def rss_mib(self) -> float:
        """Return the memory that it holds."""
        return float(psutil.Process(self.pid).memory_info().rss) / 2**20

    def busy_ms(self) -> float:
        """Return for how long its main thread, the event loop's, has run so far."""
        schedule = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text(encoding="utf-8")
        return int(schedule.split()[0]) / 1e6

    async def launch(self, instance_type: str, *, hold_ms: int | None = None) -> tuple[str, str]:
        """Launch an instance, or hold one; return its launch's id and its own."""
        number = secrets.token_hex(8)
        launch_id, instance_id = f"r-0{number}", f"i-0{number}"
        now_ms = time.time_ns() // 1_000_000
        request = messages.LaunchRequest(
            account_id="000000000000",
            instances=(messages.InstanceToLaunch(instance_id=instance_id, launch_index=0),),
            instance_type=instance_type,
            image_id=IMAGE_ID,
            hold_ms=msgspec.UNSET if hold_ms is None else hold_ms,
        )
        headers = messages.LaunchHeaders(
            launch_id=launch_id, attempt=1, sent_at_ms=now_ms, expires_at_ms=now_ms + 10_000
        )
        answer = await self._connection.request(
            launch_subject(REGION, instance_type),
            messages.encode(request),
            headers=headers.encode(),
            timeout=_ANSWER_WITHIN_S,
        )
        reply = messages.decode_launch_reply(answer.data)
        if isinstance(reply, messages.Accepted):
            return launch_id, instance_id
        raise RuntimeError(f"the agent took no launch: {reply}")

    async def release(self, launch_id: str, instance_id: str) -> None:
        """Give up a hold."""
        order = messages.AttemptRequest(launch_id=launch_id, attempt=1, instance_ids=(instance_id,))
        await self._ask_node(NodeAction.RELEASE, order)

    async def terminate(self, instance_id: str) -> None:
        """Begin to end an instance."""
        await self._ask_node(NodeAction.TERMINATE, _naming(instance_id))

    async def state_of(self, instance_id: str) -> str:
        """Return the state of an instance that it has."""
        answer = await self._ask_node(NodeAction.DESCRIBE, _naming(instance_id))
        (report,) = messages.decode(answer, messages.InstancesReply).instances
        return report.state

    async def console_of(self, instance_id: str) -> bytes:
        """Return what an instance has written to its console of late."""
        answer = await self._ask_node(NodeAction.GET_CONSOLE_OUTPUT, _naming(instance_id))
        return base64.b64decode(messages.decode(answer, messages.ConsoleReply).output_base64 or "")

    async def capacity(self) -> messages.CapacityReply:
        """Return what it says of its room."""
        answer = await self._connection.request(
            region_subject(REGION, RegionAction.DESCRIBE_CAPACITY),
            messages.encode(messages.RegionRequest()),
            timeout=_ANSWER_WITHIN_S,
        )
        return messages.decode(answer.data, messages.CapacityReply)

    async def _ask_node(self, action: NodeAction, message: messages.Message) -> bytes:
        answer = await self._connection.request(
            node_subject(REGION, NODE, action), messages.encode(message), timeout=_ANSWER_WITHIN_S
        )
        return answer.data


def _naming(instance_id: str) -> messages.InstancesRequest:
    return messages.InstancesRequest(instance_ids=(instance_id,))


@asynccontextmanager
async def lone_agent(
    folder: Path, nats_url: str, settings: Mapping[str, object]
) -> AsyncIterator[LoneAgent]:
    """Run an agent whose state is in folder/state. settings: of agent.toml, by dotted keys."""
    config, log = folder / "agent.toml", folder / "agent.log"
    lines = {
        "node": NODE,
        "region": REGION,
        "state_dir": str(folder / "state"),
        "nats.url": nats_url,
        **settings,
    }
    text = "\n".join(f"{key} = {_toml(value)}" for key, value in lines.items())
    config.write_text(text, encoding="utf-8")
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *_command(config),
            stderr=written,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        if not await asyncio.to_thread(wait_until, lambda: _is_ready(log), _READY_WITHIN_S):
            raise RuntimeError(f"the agent was not ready in time: {log.read_text()[-2000:]}")
        connection = await nats.connect(nats_url)
        try:
            yield LoneAgent(process.pid, connection)
        finally:
            await connection.close()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        end_guests(folder)  # which outlive their agent


def _command(config: Path) -> Sequence[str]:
    return [sys.executable, "-B", "-m", "fleetcast.agent", "run", "--config", str(config)]


def _is_ready(log: Path) -> bool:
    return '"agent ready"' in log.read_text(encoding="utf-8")


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(one)}' for key, one in value.items())}}}"
    return json.dumps(value)  # a JSON string or number is TOML too
