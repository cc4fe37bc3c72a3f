"""Many agents in one process, for benchmarks: `python -m bench.nodes`, started by `running_nodes`.

`tokens` is the real agent, journal and all; `accepting` is the same, with guests that boot at once.
Two are baselines that serve a single subject, without a journal: `static` stays in the queue group
when it is full and says so; `unsubscribe` leaves when it is full, after answering what had been
delivered by then. `echo` sends back what it gets.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import tempfile
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import nats

from bench.report import FOLDER
from fleetcast import messages
from fleetcast.agent.capacity.settings import CapacitySettings
from fleetcast.agent.daemon import Agent
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.agent.log_lines import log_json_lines
from fleetcast.agent.settings import AgentSettings, NatsSettings
from fleetcast.instance_types import ec2_catalogue
from fleetcast.local.conditions import wait_until
from fleetcast.local.monitoring import subjects_by_connection
from fleetcast.subjects import LAUNCH_QUEUE_GROUP, launch_subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from fleetcast.agent.drivers import Guest
    from fleetcast.local.nats_server import NatsServer

Kind = Literal["tokens", "accepting", "static", "unsubscribe", "echo"]

REGION: Final = "bench-1"
INSTANCE_TYPE: Final = "t3.medium"
# As many types as a node of the demo serves; all of them fit the same hosts.
SERVED_TYPES: Final = tuple(
    f"{family}.{size}"
    for family in ("t3", "t3a")
    for size in ("nano", "micro", "small", "medium", "large", "xlarge", "2xlarge")
)
ECHO_SUBJECT: Final = "bench.echo"


@asynccontextmanager
async def running_nodes(
    kind: Kind,
    servers: Sequence[NatsServer],
    *,
    count: int,
    slots: int,
) -> AsyncIterator[None]:
    """Run `count` nodes with room for `slots` t3.medium each, spread over the NATS servers."""
    options = {"kind": kind, "urls": [server.url for server in servers]}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.nodes"),
        json.dumps(options | {"count": count, "slots": slots}),
        stderr=asyncio.subprocess.DEVNULL,  # they log each launch
    )
    subject = ECHO_SUBJECT if kind == "echo" else launch_subject(REGION, INSTANCE_TYPE)
    try:
        if not await asyncio.to_thread(wait_until, lambda: _serving(servers, subject) == count, 60):
            raise RuntimeError(f"the {kind} nodes did not start within 60 s")
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _serving(servers: Sequence[NatsServer], subject: str) -> int:
    return sum(
        subject in subjects
        for server in servers
        for subjects in subjects_by_connection(server.monitoring_url).values()
    )


async def _serve(kind: Kind, urls: list[str], count: int, slots: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if kind == "accepting":
        SimulatedDriver.boot = _boot_nothing  # type: ignore[method-assign] # in this process only
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        await asyncio.gather(
            *(
                _agent(f"{folder}/n{at}", f"n{at}", urls[at % len(urls)], slots, stop)
                if kind in {"tokens", "accepting"}
                else _plain_node(kind, f"n{at}", urls[at % len(urls)], slots, stop)
                for at in range(count)
            )
        )


async def _boot_nothing(self: SimulatedDriver, guest: Guest) -> None:
    """Boot at no cost."""


async def _agent(folder: str, node: str, url: str, slots: int, stop: asyncio.Event) -> None:
    medium = ec2_catalogue().lookup(INSTANCE_TYPE)
    settings = AgentSettings(
        node=node,
        region=REGION,
        state_dir=folder,
        driver="simulated",
        instance_types=SERVED_TYPES,
        nats=NatsSettings(url=url),
        capacity=CapacitySettings(vcpu=medium.vcpu * slots, memory_mib=medium.memory_mib * slots),
    )
    await Agent(settings).run(stop)


async def _plain_node(kind: Kind, node: str, url: str, slots: int, stop: asyncio.Event) -> None:
    connection = await nats.connect(url, name=node)
    launched: set[str] = set()
    leaving: set[asyncio.Task[None]] = set()
    subscription: Subscription | None = None

    async def launch(message: Msg) -> None:
        nonlocal subscription
        if len(launched) >= slots:
            full = messages.Rejected(node=node, reason="full")
            await message.respond(messages.encode(full))
            return
        request = messages.decode(message.data, messages.LaunchRequest)
        (instance,) = request.instances
        launched.add(instance.instance_id)
        accepted = messages.Accepted(node=node, zone=None, instance_ids=(instance.instance_id,))
        await message.respond(messages.encode(accepted))
        if kind == "unsubscribe" and len(launched) == slots and subscription:
            draining = subscription.drain()  # type: ignore[no-untyped-call] # nats-py's gap
            leaving.add(asyncio.create_task(draining))

    async def echo(message: Msg) -> None:
        await message.respond(message.data)

    if kind == "echo":
        await connection.subscribe(ECHO_SUBJECT, cb=echo)
    else:
        subject = launch_subject(REGION, INSTANCE_TYPE)
        subscription = await connection.subscribe(subject, queue=LAUNCH_QUEUE_GROUP, cb=launch)
    await connection.flush()
    await stop.wait()
    await connection.close()


if __name__ == "__main__":
    # As an agent on its own does. What it logs is a part of what it costs.
    log_json_lines()
    gc.freeze()
    asyncio.run(_serve(**json.loads(sys.argv[1])))
