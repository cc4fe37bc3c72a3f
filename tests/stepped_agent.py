"""An agent in memory whose disk, driver and connection move only when the test lets them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.capacity.served_types import ServedTypes
from fleetcast.agent.drivers import BootFailed, Guest, GuestEnd, GuestUse
from fleetcast.agent.guests import Guests
from fleetcast.agent.holds import Holds
from fleetcast.agent.instances import Instances
from fleetcast.agent.journal import Journal, open_database
from fleetcast.agent.launches import LaunchDesk
from fleetcast.agent.owner_actions import OwnerActions
from fleetcast.agent.set_aside import SetAside
from fleetcast.agent.tokens import CapacityTokens
from fleetcast.capacity import Resources, resources_of
from fleetcast.instance_types import InstanceType
from fleetcast.subjects import launch_subject
from tests.agent_parts import NOW_MS, Delivered
from tests.simulated_nats import (
    SimulatedConnection,
    SimulatedDisconnect,
    SimulatedServer,
    SimulatedSubscriptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from fleetcast.messages import LaunchRequest

_T = TypeVar("_T")

TYPES: Final = {
    name: InstanceType(name=name, vcpu=vcpu, memory_mib=1024 * vcpu)
    for name, vcpu in (("x.small", 1), ("x.medium", 2), ("x.large", 4))
}
NEEDS: Final = {launch_subject("r", name): resources_of(one) for name, one in TYPES.items()}
_TURNS: Final = 40


class SteppedDisk(Executor):
    """The journal's thread: each piece of work is done, or fails, when the machine says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.has_failed = False

    def submit(self, work: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:  # noqa: ANN401 - as Executor
        future: Future[Any] = Future()
        self.waiting.append((future, work))
        return future

    def step(self, *, fails: bool) -> None:
        future, work = self.waiting.pop(0)
        if fails:
            self.has_failed = True
            future.set_exception(sqlite3.OperationalError("disk full"))
        else:
            future.set_result(work())


class SteppedDriver:
    """Guests that outlive the agent; each boot and each end happens when the machine says so."""

    def __init__(self) -> None:
        self.running: dict[str, Guest] = {}
        self.busy: list[asyncio.Future[None]] = []
        # By themselves, and nothing has been done about it since.
        self._ended: dict[str, Guest] = {}
        self._ends: asyncio.Queue[GuestEnd] = asyncio.Queue()

    @property
    def accelerator(self) -> None:
        """Nothing runs."""

    def check(self, request: LaunchRequest, instance_type: InstanceType) -> None:
        """Take all of them."""

    def addresses(self, instance_id: str) -> None:
        """They are in no network."""

    def overhead_mib(self, memory_mib: int) -> int:  # noqa: ARG002 - the contract's
        return 0

    def lacks(self) -> None:
        """Nothing."""

    async def in_use(self) -> dict[str, GuestUse]:
        return {}

    async def boot(self, guest: Guest) -> None:
        if guest.instance_id in self.running:
            return
        await self._its_turn()
        self._ended.pop(guest.instance_id, None)
        self.running[guest.instance_id] = guest

    async def destroy(self, instance_id: str) -> None:
        with contextlib.suppress(BootFailed):
            await self._its_turn()
        self._ended.pop(instance_id, None)
        self.running.pop(instance_id, None)

    async def stop(self, instance_id: str) -> None:
        await self.destroy(instance_id)

    async def reboot(self, instance_id: str) -> None:
        """Nothing that the machine looks at."""

    async def console_output(self, instance_id: str) -> None:
        """None of them has a console."""

    async def next_end(self) -> GuestEnd:
        return await self._ends.get()

    async def alive(self) -> Mapping[str, Guest]:
        return self.running | self._ended

    async def _its_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self.busy.append(turn)
        await turn

    def end(self, instance_id: str, how: Literal["powered off", "crashed"]) -> None:
        """Let a guest end by itself."""
        self._ended[instance_id] = self.running.pop(instance_id)
        self._ends.put_nowait(GuestEnd(instance_id, how, "test"))

    def lose_agent(self) -> None:
        """Tell all ends that nothing has been done about to the next agent."""
        self.busy.clear()
        self._ends = asyncio.Queue()
        for instance_id in self._ended:
            self._ends.put_nowait(GuestEnd(instance_id, "crashed", "test"))

    def step(self, at: int, *, fails: bool) -> None:
        turn = self.busy.pop(at)
        if not turn.done():
            turn.set_exception(BootFailed("no")) if fails else turn.set_result(None)


class Host:
    """One node's agent on a loop of its own, killed and started again on what it had written.

    waiting: what the desk was handed and may not have answered. swallowed: see SimulatedConnection.
    """

    def __init__(self, server: SimulatedServer, vcpu: int) -> None:
        self._server = server
        self._database = open_database(":memory:")
        self.now_ms = NOW_MS
        self.total = Resources(vcpu=vcpu, memory_mib=1024 * vcpu)
        self.driver = SteppedDriver()
        self.swallowed: list[Delivered] = []
        self._lost: list[Delivered] = []
        self.start()

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.disk = SteppedDisk()
        self.waiting: list[Delivered] = []
        self.ledger = Ledger(self.total)
        self.connection = SimulatedConnection(self._server)
        self.changed = asyncio.Event()
        self.instances = Instances(
            journal=Journal(self._database, self.disk),
            ledger=self.ledger,
            now_s=lambda: self.now_ms / 1000,
            capacity_changed=self.changed.set,
        )
        self.timers: list[Callable[[], None]] = []
        set_aside = SetAside(
            ledger=self.ledger,
            call_later=lambda _, what: self.timers.append(what),
            capacity_changed=self.changed.set,
        )
        self.guests = Guests(
            instances=self.instances,
            ledger=self.ledger,
            driver=self.driver,
            set_aside=set_aside,
            call_later=lambda _, what: self.timers.append(what),
            capacity_changed=self.changed.set,
        )
        self.owner_actions = OwnerActions(instances=self.instances, guests=self.guests)
        self.holds = Holds(instances=self.instances, guests=self.guests, now_ms=lambda: self.now_ms)
        self.desk = LaunchDesk(
            node="n",
            zone=None,
            served_types=ServedTypes(TYPES, overhead_mib=self.driver.overhead_mib),
            instances=self.instances,
            guests=self.guests,
            set_aside=set_aside,
            now_ms=lambda: self.now_ms,
            capacity_changed=self.changed.set,
        )
        self.subscriptions = SimulatedSubscriptions(self.connection, self._hand_over)
        self.tokens = CapacityTokens(
            self.subscriptions,
            room_by_subject=self.room,
            in_hand=self.desk.in_hand,
            call_later=lambda _, what: self.timers.append(what),
            changed=self.changed.set,
        )
        restoring = self.begin(self.guests.restore())
        while self.disk.waiting:
            self.disk.step(fails=False)
            self.turn()
        restoring.result()
        self.begin(self.desk.run())
        self.begin(self.guests.keep_following_ends())
        self.begin(self._keep_tokens())

    def room(self) -> dict[str, int]:
        return {subject: self.ledger.room(need) for subject, need in NEEDS.items()}

    def _hand_over(self, request: Delivered) -> None:
        self.waiting.append(request)
        self.desk.deliver(request)

    async def _keep_tokens(self) -> None:
        while True:
            await self.changed.wait()
            self.changed.clear()
            if self.connection.connected:
                # A disconnect in the middle of it: the reconnection is a change, too.
                with contextlib.suppress(SimulatedDisconnect):
                    await self.tokens.adjust()

    # --- time ------------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = self._loop.create_task(work)
        self.turn()
        return task

    def turn(self) -> None:
        """Run everything that waits for nothing but its turn."""
        for _ in range(_TURNS):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        if self.is_settled():
            self.waiting.clear()

    def is_settled(self) -> bool:
        """Say whether the desk has answered everything that it was handed."""
        settling = self._loop.create_task(self.desk.settled())
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()
        settled = settling.done()
        settling.cancel()
        return settled

    def step(self, which: int = 0, *, fails: bool = False) -> bool:
        """Let one of the things that it waits for happen. False if it waits for nothing."""
        driver = self.driver
        ready: list[Callable[[], object]] = [
            *([self.connection.server_step] if self.connection.has_commands() else []),
            *([self.connection.client_step] if self.connection.has_messages() else []),
            *([partial(self.disk.step, fails=fails)] if self.disk.waiting else []),
            *(partial(driver.step, at, fails=fails) for at in range(len(driver.busy))),
            *([self._end_the_wait] if self.timers else []),
        ]
        if not ready:
            return False
        ready[which % len(ready)]()
        self.turn()
        return True

    def _end_the_wait(self) -> None:
        self._loop.call_soon(self.timers.pop())

    # --- accidents -------------------------------------------------------------------------

    async def leave(self) -> None:
        """As the daemon does on SIGTERM, also in the middle of a pass."""
        self.ledger.close("stopping")
        with contextlib.suppress(SimulatedDisconnect):
            await self.tokens.adjust()

    def reconnect(self) -> None:
        self.connection.reconnect()
        self.tokens.renew()
        self.changed.set()
        self.turn()

    def kill(self) -> None:
        """End it as kill -9 does: what was not written is gone, guests run on."""
        self.connection.lose()
        self._server.connections.remove(self.connection)
        self.swallowed += self.connection.swallowed
        self._lost += self.connection.lost + self.waiting
        self.driver.lose_agent()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self.turn()
        self._loop.close()

    def lost_requests(self) -> list[Delivered]:
        """Return what was on its way, or in hand, when a connection or the agent went."""
        return self._lost + self.connection.lost

    def close(self) -> None:
        self.kill()
        self._database.close()
