"""Limited subscriptions: the real nats-server and the simulated one keep the same contract.

What the capacity tokens rely on, and the state machine of the unit tests with them. The second
half holds nats-py to what fleetcast/agent/limited_subscription.py uses of its private parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import inspect
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from fleetcast.agent.limited_subscription import LimitedSubscription, NatsSubscriptions
from fleetcast.agent.nats_client import AgentClient
from fleetcast.subjects import LAUNCH_QUEUE_GROUP
from tests.agent_parts import Delivered
from tests.eventually import eventually
from tests.nats_process import NatsProcess
from tests.simulated_nats import (
    SimulatedArmed,
    SimulatedConnection,
    SimulatedServer,
    SimulatedSubscriptions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from fleetcast.agent.nats_client import Delivery

SUBJECT = "ec2.RunInstances.r.t3.medium"


class Agent(Protocol):
    """One member of the queue group. handed_over: how many requests reached it."""

    handed_over: int

    async def arm(self, limit: int) -> Any: ...  # noqa: ANN401 - what retire takes back

    async def retire(self, armed: Sequence[Any]) -> None: ...

    async def sub(self) -> int:
        """Subscribe without a limit, and return the sid once the server has it."""

    async def unsub(self, sid: int, limit: int) -> None: ...


class Wire(Protocol):
    """A server, with agents and a requester connected to it."""

    async def agent(self) -> Agent: ...

    async def ask(self, times: int) -> int:
        """Send that many requests; return how many were taken, and refused the others."""


# --- the simulated one ---------------------------------------------------------------------


class _SimulatedAgent:
    def __init__(self, wire: _SimulatedWire) -> None:
        self.handed_over = 0
        self._wire = wire
        self._connection = SimulatedConnection(wire.server)
        self._subscriptions = SimulatedSubscriptions(self._connection, self._count)

    def _count(self, _: Delivered) -> None:
        self.handed_over += 1

    async def arm(self, limit: int) -> SimulatedArmed:
        armed = await self._subscriptions.arm(SUBJECT, limit)
        await self._wire.settle()
        return armed

    async def retire(self, armed: Sequence[SimulatedArmed]) -> None:
        await asyncio.gather(self._subscriptions.retire(armed), self._wire.settle())

    async def sub(self) -> int:
        sid = self._connection.subscribe(SUBJECT, self._count)
        await self._wire.settle()
        return sid

    async def unsub(self, sid: int, limit: int) -> None:
        self._connection.unsubscribe(sid, limit)
        await self._wire.settle()


class _SimulatedWire:
    def __init__(self) -> None:
        self.server = SimulatedServer()

    async def agent(self) -> Agent:
        return _SimulatedAgent(self)

    async def ask(self, times: int) -> int:
        taken = 0
        for _ in range(times):
            taken += self.server.publish(Delivered(b"", subject=SUBJECT))
            await asyncio.sleep(0)  # whatever else is going on goes on between two requests
        await self.settle()
        return taken

    async def settle(self) -> None:
        """Let everything arrive, one thing at a time."""
        await asyncio.sleep(0)
        busy = True
        while busy:
            busy = False
            for connection in self.server.connections:
                if connection.has_commands():
                    connection.server_step()
                    busy = True
                await asyncio.sleep(0)
                if connection.has_messages():
                    connection.client_step()
                    busy = True
                await asyncio.sleep(0)


# --- the real one --------------------------------------------------------------------------


class _RealAgent:
    def __init__(self, connection: AgentClient) -> None:
        self.handed_over = 0
        self.subscriptions = NatsSubscriptions(connection, self._count)
        self._connection = connection
        self._answering: set[asyncio.Task[None]] = set()

    def _count(self, message: Delivery) -> None:
        self.handed_over += 1
        answering = asyncio.create_task(message.respond(b""))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def arm(self, limit: int) -> LimitedSubscription:
        armed = await self.subscriptions.arm(SUBJECT, limit)
        await self.subscriptions.settle()
        return armed

    async def retire(self, armed: Sequence[LimitedSubscription]) -> None:
        await self.subscriptions.retire(armed)

    async def sub(self) -> int:
        subscription = await self._connection.hear(SUBJECT, self._count, queue=LAUNCH_QUEUE_GROUP)
        await self.subscriptions.settle()
        return subscription._id  # noqa: SLF001 - as the module under test

    async def unsub(self, sid: int, limit: int) -> None:
        await self._connection._send_unsubscribe(sid, limit)  # noqa: SLF001 - as the module under test
        await self.subscriptions.settle()


class _RealWire:
    def __init__(
        self, connect: Callable[[], Awaitable[AgentClient]], requester: AgentClient
    ) -> None:
        self._connect = connect
        self._requester = requester

    async def agent(self) -> Agent:
        return _RealAgent(await self._connect())

    async def ask(self, times: int) -> int:
        async def one() -> bool:
            with contextlib.suppress(nats.errors.NoRespondersError):
                await self._requester.request(SUBJECT, b"", timeout=5)
                return True
            return False

        return sum(await asyncio.gather(*(one() for _ in range(times))))


@contextlib.asynccontextmanager
async def _connector(server: NatsProcess) -> AsyncIterator[Callable[[], Awaitable[AgentClient]]]:
    async with contextlib.AsyncExitStack() as closing:

        async def connected() -> AgentClient:
            connection = AgentClient()
            await connection.connect(server.url, name="agent")
            closing.push_async_callback(connection.close)
            return connection

        yield connected


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def connect(server: NatsProcess) -> AsyncIterator[Callable[[], Awaitable[AgentClient]]]:
    async with _connector(server) as connected:
        yield connected


@pytest.fixture(params=["simulated", "real"])
async def wire(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Wire]:
    if request.param == "simulated":
        yield _SimulatedWire()
        return
    async with NatsProcess(tmp_path) as running, _connector(running) as connected:
        yield _RealWire(connected, await connected())


# --- the contract of both ------------------------------------------------------------------


async def test_exactly_as_many_are_taken_as_were_armed(wire: Wire) -> None:
    agent = await wire.agent()
    await agent.arm(3)
    assert await wire.ask(10) == 3
    assert agent.handed_over == 3
    assert await wire.ask(1) == 0


async def test_nobody_armed_is_no_responders_at_once(wire: Wire) -> None:
    await wire.agent()
    assert await wire.ask(1) == 0


async def test_what_came_before_the_limit_counts_towards_it(wire: Wire) -> None:
    agent = await wire.agent()
    sid = await agent.sub()
    assert await wire.ask(2) == 2
    await agent.unsub(sid, 3)
    assert await wire.ask(5) == 1


async def test_a_limit_that_is_already_reached_ends_the_interest(wire: Wire) -> None:
    agent = await wire.agent()
    sid = await agent.sub()
    assert await wire.ask(4) == 4
    await agent.unsub(sid, 3)
    assert await wire.ask(5) == 0


async def test_a_limit_for_a_subscription_that_is_gone_is_ignored(wire: Wire) -> None:
    agent = await wire.agent()
    armed = await agent.arm(1)
    assert await wire.ask(2) == 1
    sid = armed.sid if isinstance(armed, SimulatedArmed) else armed.subscription._id  # noqa: SLF001 - as the module under test
    await agent.unsub(sid, 100)
    assert await wire.ask(1) == 0


async def test_the_queue_group_uses_up_every_members_tokens(wire: Wire) -> None:
    agents = [await wire.agent() for _ in range(3)]
    for limit, agent in enumerate(agents, start=1):
        await agent.arm(limit)
    assert await wire.ask(10) == 6
    assert [agent.handed_over for agent in agents] == [1, 2, 3]


async def test_after_retiring_nobody_is_asked(wire: Wire) -> None:
    agent = await wire.agent()
    armed = await agent.arm(3)
    await agent.retire([armed])
    assert await wire.ask(3) == 0


async def test_retiring_twice_is_allowed(wire: Wire) -> None:
    agent = await wire.agent()
    armed = await agent.arm(3)
    await agent.retire([armed])
    await agent.retire([armed])
    assert await wire.ask(1) == 0


async def test_retiring_hands_over_what_was_on_its_way(wire: Wire) -> None:
    agent = await wire.agent()
    armed = await agent.arm(1_000)
    asking = asyncio.create_task(wire.ask(500))
    await eventually(lambda: asyncio.sleep(0, agent.handed_over))
    await agent.retire([armed])
    handed_over_by_then = agent.handed_over
    taken = await asking
    assert taken == agent.handed_over == handed_over_by_then


async def test_replacing_leaves_no_instant_without_interest(wire: Wire) -> None:
    agent = await wire.agent()
    armed = await agent.arm(1_000)
    asking = asyncio.create_task(wire.ask(300))
    for _ in range(20):
        replaced, armed = armed, await agent.arm(1_000)
        await agent.retire([replaced])
    assert await asking == 300
    assert agent.handed_over == 300


async def test_remaining_counts_down_to_nothing(wire: Wire) -> None:
    agent = await wire.agent()
    armed = await agent.arm(3)
    assert armed.remaining == 3
    await wire.ask(2)
    assert armed.remaining == 1
    await wire.ask(2)
    assert armed.remaining == 0


# --- nats-py -------------------------------------------------------------------------------


def test_nats_py_is_the_version_that_is_pinned_everywhere() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    installed = importlib.metadata.version("nats-py")
    requirements = [
        *project["project"]["optional-dependencies"]["agent"],
        *project["dependency-groups"]["lambdas"],
    ]
    pins = [one for one in requirements if re.match(r"nats-py\b", one)]
    assert len(pins) == 2
    assert all(pin.endswith(f"=={installed}") for pin in pins), (pins, installed)


def test_nats_py_has_the_private_parts_that_are_used() -> None:
    assert list(inspect.signature(Client._send_unsubscribe).parameters) == ["self", "sid", "limit"]  # noqa: SLF001 - this is the pin
    assert list(inspect.signature(Client._send_ping).parameters) == ["self", "future"]  # noqa: SLF001 - this is the pin
    assert list(inspect.signature(Client._remove_sub).parameters)[:2] == ["self", "sid"]  # noqa: SLF001 - this is the pin


async def test_a_subscription_of_nats_py_has_a_sid(
    connect: Callable[[], Awaitable[AgentClient]],
) -> None:
    subscription = await (await connect()).subscribe("x")
    assert isinstance(subscription._id, int)  # noqa: SLF001 - this is the pin


async def test_arming_keeps_the_limit_from_nats_py_and_sends_it_to_the_server(
    server: NatsProcess, connect: Callable[[], Awaitable[AgentClient]]
) -> None:
    agent = _RealAgent(await connect())
    armed = await agent.arm(5)
    (held,) = (await server.subscriptions("agent"))[SUBJECT]
    assert (held.max, held.qgroup) == (5, LAUNCH_QUEUE_GROUP)
    assert armed.subscription
    # With a limit of its own, nats-py would stop handing over too early.
    assert armed.subscription._max_msgs == 0  # noqa: SLF001 - this is the pin


async def test_retiring_leaves_nothing_behind_in_the_client(
    server: NatsProcess, connect: Callable[[], Awaitable[AgentClient]]
) -> None:
    connection = await connect()
    agent = _RealAgent(connection)
    armed = [await agent.arm(2) for _ in range(10)]
    assert connection._subs  # noqa: SLF001 - this is the pin
    await agent.retire(armed)
    assert not connection._subs  # noqa: SLF001 - this is the pin
    assert not connection._takers  # noqa: SLF001 - as the module under test
    assert not await server.subscriptions("agent")


async def test_after_a_reconnection_what_stands_is_renewed_and_can_be_retired(
    server: NatsProcess, connect: Callable[[], Awaitable[AgentClient]]
) -> None:
    connection = await connect()
    connection.options["reconnect_time_wait"] = 0.05
    agent = _RealAgent(connection)
    armed = await agent.arm(2)
    await server.kill()
    await eventually(lambda: asyncio.sleep(0, not connection.is_connected))
    await server.start()
    await eventually(lambda: server.subscriptions("agent"), lambda held: SUBJECT in held)
    # Without its limit: the tokens are renewed for that reason.
    assert [one.max for one in (await server.subscriptions("agent"))[SUBJECT]] == [0]
    await eventually(lambda: asyncio.sleep(0, connection.is_connected))
    await agent.retire([armed])
    assert not await server.subscriptions("agent")


async def test_a_server_that_answers_too_late_is_heard_all_the_same(
    server: NatsProcess, connect: Callable[[], Awaitable[AgentClient]]
) -> None:
    """nats-py's own flush leaves its client deaf after that."""
    agent = _RealAgent(await connect())
    armed = await agent.arm(2)
    server.hang()
    with pytest.raises(nats.errors.FlushTimeoutError):
        await agent.retire([armed])
    server.go_on()
    await agent.retire([armed])
    await agent.arm(1)
    assert await _RealWire(connect, await connect()).ask(2) == 1
    assert agent.handed_over == 1


async def test_an_answer_that_went_down_with_its_server_is_not_waited_for(
    server: NatsProcess,
) -> None:
    """A node without room would be asked for as long, by subscriptions without a limit."""
    subscriptions: list[NatsSubscriptions] = []

    async def disconnected() -> None:
        subscriptions[0].connection_lost()

    connection = AgentClient()
    await connection.connect(server.url, disconnected_cb=disconnected)
    subscriptions.append(NatsSubscriptions(connection, lambda _: None))
    armed = await subscriptions[0].arm("ec2.a", 2)
    server.hang()
    retiring = asyncio.create_task(subscriptions[0].retire([armed]))
    done, _ = await asyncio.wait([retiring], timeout=0.1)  # it waits for the answer
    assert not done
    await server.kill()
    try:
        async with asyncio.timeout(1):
            with pytest.raises(nats.errors.FlushTimeoutError):
                await retiring
    finally:
        await connection.close()


async def test_a_flush_is_on_the_wire_after_the_unsubscription_it_is_for(
    server: NatsProcess,
) -> None:
    """nats-py writes a PING ahead of the commands in its buffer: one flush proves nothing."""
    async with _recording_proxy(server.url) as (url, sent):
        connection = AgentClient()
        await connection.connect(url)
        agent = _RealAgent(connection)
        armed = await agent.arm(2)
        await agent.retire([armed])
        commands = [line.partition(" ")[0] for line in sent.decode().split("\r\n")]
        await connection.close()
    last_unsub = len(commands) - commands[::-1].index("UNSUB")
    assert "PING" in commands[last_unsub:]


@contextlib.asynccontextmanager
async def _recording_proxy(server_url: str) -> AsyncIterator[tuple[str, bytearray]]:
    """Stand between a client and the server, and keep what the client has sent."""
    sent = bytearray()
    port = int(server_url.rpartition(":")[2])
    relays: set[asyncio.Task[None]] = set()

    async def relay(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray | None
    ) -> None:
        while block := await source.read(65_536):
            if kept is not None:
                kept += block
            sink.write(block)
            await sink.drain()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
        relays.add(asyncio.create_task(relay(reader, to_server, sent)))
        relays.add(asyncio.create_task(relay(from_server, writer, None)))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"nats://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", sent
    finally:
        proxy.close()
        await asyncio.gather(*relays, return_exceptions=True)
