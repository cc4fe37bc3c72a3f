"""One agent process: connects, serves, leaves.

Owns the connection's life and the order of things: what the node already holds is taken up
before the first launch is asked for, and on the way out the launch subjects are left first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.protocol.parser import PERMISSIONS_ERR
from nkeys import NkeysError  # type: ignore[import-untyped] # it has no annotations

from fleetcast.agent.capacity.gpu_load import GpuLoad, has_nvidia_driver
from fleetcast.agent.capacity.gpus import gpus_for_guests
from fleetcast.agent.capacity.host import Host
from fleetcast.agent.capacity.host_load import HostLoad
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.capacity.report import CapacityReport
from fleetcast.agent.capacity.serving import types_to_serve
from fleetcast.agent.capacity.watch import CapacityWatch
from fleetcast.agent.cordon import Cordon
from fleetcast.agent.drain import Drain
from fleetcast.agent.drivers.choice import make_driver
from fleetcast.agent.guests import Guests
from fleetcast.agent.holds import Holds
from fleetcast.agent.instances import Instances
from fleetcast.agent.journal import Journal, JournalUnwritable
from fleetcast.agent.launch_subjects import LaunchSubjects
from fleetcast.agent.launches import LaunchDesk
from fleetcast.agent.limited_subscription import NatsSubscriptions
from fleetcast.agent.nats_client import AgentClient
from fleetcast.agent.node_actions import NodeActions
from fleetcast.agent.owner_actions import OwnerActions
from fleetcast.agent.service_manager import ServiceManager
from fleetcast.agent.set_aside import SetAside
from fleetcast.agent.tokens import CapacityTokens
from fleetcast.agent.watchdog import (
    NATS_IS_DOWN,
    ConnectionLost,
    Troubles,
    Watchdog,
    close_in_time,
    is_out_of_reach,
    told,
)
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import ec2_catalogue
from fleetcast.nats_access import is_credentials_file

if TYPE_CHECKING:
    from fleetcast.agent.settings import AgentSettings

_log = logging.getLogger(__name__)

_FORGET_EVERY_S: Final = 3_600
_PING_INTERVAL_S: Final = 10
_CONNECT_WITHIN_S: Final = 30
# A service manager waits 90 s and then kills.
_LEAVE_WITHIN_S: Final = 10
_NO_MANAGER: Final = ServiceManager(None)
_CANCEL_AGAIN_S: Final = 0.1


class Agent:
    """One node's agent. `run` it once. manager: told when it serves, and that it still does."""

    def __init__(self, settings: AgentSettings, manager: ServiceManager = _NO_MANAGER) -> None:
        state_dir = _state_dir(settings)
        self._settings = settings
        self._manager = manager
        gpus = gpus_for_guests(settings.gpus)
        self._driver = make_driver(settings, state_dir, gpu_addresses=gpus.addresses)
        self._capacity_watch = CapacityWatch(
            settings.capacity,
            Host(state_dir).state,
            is_simulated=settings.is_simulated,
            gpus=len(gpus.addresses),
        )
        self._ledger = Ledger(self._capacity_watch.total())
        self._served_types = types_to_serve(
            settings, ec2_catalogue(), total=self._ledger.total, gpus=gpus, driver=self._driver
        )
        launch_subjects = LaunchSubjects(
            self._served_types, self._ledger, region=settings.region, zone=settings.zone
        )
        self._journal = Journal.open(state_dir / "journal.sqlite")
        gpu_load = GpuLoad(self._ledger, has_own=has_nvidia_driver())
        self._host_load = HostLoad(state_dir, gpu_utilization=gpu_load.utilization)
        self._changed = asyncio.Event()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._instances = Instances(
            journal=self._journal,
            ledger=self._ledger,
            now_s=time.time,
            capacity_changed=self._changed.set,
        )
        set_aside = SetAside(
            ledger=self._ledger,
            call_later=asyncio.get_running_loop().call_later,
            capacity_changed=self._changed.set,
        )
        self._guests = Guests(
            instances=self._instances,
            ledger=self._ledger,
            driver=self._driver,
            set_aside=set_aside,
            call_later=asyncio.get_running_loop().call_later,
            capacity_changed=self._changed.set,
        )
        self._holds = Holds(instances=self._instances, guests=self._guests, now_ms=_now_ms)
        self._desk = LaunchDesk(
            node=settings.node,
            zone=settings.zone,
            served_types=self._served_types,
            instances=self._instances,
            guests=self._guests,
            set_aside=set_aside,
            now_ms=_now_ms,
            capacity_changed=self._changed.set,
        )
        self._connection = AgentClient()
        self._connected = False
        self._troubles = Troubles(asyncio.get_running_loop().time)
        self._subscriptions = NatsSubscriptions(self._connection, self._desk.deliver)
        self._tokens = CapacityTokens(
            self._subscriptions,
            room_by_subject=launch_subjects.room,
            in_hand=self._desk.in_hand,
            call_later=asyncio.get_running_loop().call_later,
            changed=self._changed.set,
        )
        owner_actions = OwnerActions(instances=self._instances, guests=self._guests)
        cordon = Cordon(
            state_dir / "cordon.json",
            ledger=self._ledger,
            launches_decided=self._desk.settled,
            capacity_changed=self._changed.set,
        )
        self._drain = Drain(cordon=cordon, instances=self._instances, owner_actions=owner_actions)
        self._capacity_report = self._report_capacity()
        self._actions = self._node_actions(owner_actions)

    def _node_actions(self, owner_actions: OwnerActions) -> NodeActions:
        node, zone = self._settings.node, self._settings.zone
        return NodeActions(
            node=node,
            zone=zone,
            instances=self._instances,
            holds=self._holds,
            owner_actions=owner_actions,
            drain=self._drain,
            capacity_report=self._capacity_report,
            now_s=time.time,
        )

    def _report_capacity(self) -> CapacityReport:
        return CapacityReport(
            node=self._settings.node,
            zone=self._settings.zone,
            served_types=self._served_types,
            instances=self._instances,
            ledger=self._ledger,
            host_load=self._host_load,
            accelerator=self._driver.accelerator,
            tokens=self._tokens.remaining,
            now_ms=_now_ms,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then leave in order.

        Raises ConnectionLost when the node can't be served any more: a supervisor restarts it.
        """
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._first(serving, stopping)
            leaving = asyncio.create_task(self._leave())
            await self._first(leaving)
        finally:
            # From here on a closed connection is what we want.
            if not self._fatal.cancel():
                self._fatal.exception()  # it has been raised, or something worse has
            await end_tasks(serving, stopping)
            if self._connected:
                await close_in_time(self._connection)
            self._journal.close()

    async def _first(self, *waiting: asyncio.Task[Any]) -> None:
        """Wait for the first of these to end. Raises what makes serving impossible."""
        done, _ = await asyncio.wait([*waiting, self._fatal], return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()

    async def _serve(self) -> None:
        await self._guests.restore()
        # Guests end whether NATS is there or not.
        following = asyncio.create_task(self._guests.keep_following_ends())
        watchdog = Watchdog(
            self._connection, round_trip=self._subscriptions.settle, manager=self._manager
        )
        try:
            await asyncio.gather(
                watchdog.keep_watching(),
                self._serve_requests(),
                self._host_load.keep_sampling(),
                following,
                self._capacity_watch.keep_looking(
                    self._ledger, taken=self._driver.in_use, capacity_changed=self._changed.set
                ),
                self._serve_metrics(),
                self._drain.keep_draining(),
                self._holds.keep_lapsing(),
                self._keep_forgetting(),
            )
        except (nats.errors.Error, NkeysError) as problem:
            raise ConnectionLost(f"NATS can't be used: {problem!r}") from problem
        finally:
            await end_tasks(following)

    async def _serve_requests(self) -> None:
        await self._connect()
        await self._actions.listen(self._connection, region=self._settings.region)
        await asyncio.gather(self._desk.run(), self._keep_tokens())

    async def _serve_metrics(self) -> None:
        port = self._settings.telemetry.prometheus_port
        if port is None:
            return
        # Here, so that an agent that serves none doesn't carry what serves them.
        from fleetcast.agent.metrics import Metrics  # noqa: PLC0415

        metrics = Metrics(
            region=self._settings.region,
            capacity_report=self._capacity_report,
            instances=self._instances,
            launches=self._desk.outcomes,
        )
        await metrics.serve(port)

    async def _leave(self) -> None:
        self._manager.stopping()
        if not self._connection.is_connected:
            return
        _log.info("leaving", extra={"node": self._settings.node})
        self._ledger.close("stopping")
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                await self._tokens.adjust()
                await self._desk.settled()
                await self._actions.answered()
                await self._guests.idle()
            await self._subscriptions.settle()
        except nats.errors.Error as problem:
            # The server has gone, and with it those who wait for an answer.
            _log.warning("left without the last answers", extra={"why": repr(problem)})
        except TimeoutError:
            # The next agent goes on with them: they are in the journal.
            _log.warning("left with work unfinished", extra={"instances": self._guests.at_work})

    async def _keep_forgetting(self) -> None:
        while True:
            try:
                await self._instances.forget()
            except JournalUnwritable as problem:
                _log.warning("nothing forgotten", extra={"why": str(problem)})
            await asyncio.sleep(_FORGET_EVERY_S)

    # --- the connection --------------------------------------------------------------------

    async def _connect(self) -> None:
        nats_settings = self._settings.nats
        if nats_settings.credentials_file is not None:
            _check_credentials(Path(nats_settings.credentials_file))
        connecting = self._connection.connect(
            nats_settings.url,
            name=f"fleetcast-agent {self._settings.region} {self._settings.node}",
            user_credentials=nats_settings.credentials_file,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=_PING_INTERVAL_S,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        try:
            # Not all of it has a time-out of its own; where it may wait, the watchdog looks on.
            within_s = None if self._manager.listens else _CONNECT_WITHIN_S
            await asyncio.wait_for(connecting, within_s)
        except TimeoutError as problem:
            raise ConnectionLost(f"can't connect to {nats_settings.url}: {told(problem)}") from None
        self._connected = True

    async def _on_error(self, error: Exception) -> None:
        if not self._connected and self._manager.listens and is_out_of_reach(error):
            # To be restarted until the server is there would cut short what guests do meanwhile.
            self._manager.ready(NATS_IS_DOWN)
            self._troubles.heard(error)
        elif not self._connected:
            # The client would try for ever; a wrong URL should be told to who has just typed it.
            self._fail(f"can't connect to {self._settings.nats.url}: {told(error)}")
        # nats-py has no class for it, only this constant part of the text.
        elif f"{PERMISSIONS_ERR} for subscription" in str(error):
            # Without its subjects the node looks alive and is not: better to be restarted.
            self._fail(f"NATS refuses what the agent needs: {error}")
        else:
            self._troubles.heard(error)

    async def _on_disconnected(self) -> None:
        self._subscriptions.connection_lost()
        if not self._connection.is_closed:
            _log.warning("disconnected from NATS, reconnecting")

    async def _on_reconnected(self) -> None:
        _log.info("reconnected to NATS")
        self._troubles.over()
        # The client has renewed its subscriptions, but without their limits.
        self._tokens.renew()
        self._changed.set()

    async def _on_closed(self) -> None:
        self._fail(f"the NATS connection was closed: {self._connection.last_error}")

    def _fail(self, why: str) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(ConnectionLost(why))

    # --- tokens ----------------------------------------------------------------------------

    async def _keep_tokens(self) -> None:
        """Bring the tokens in line after every change; a burst of changes shares one pass."""
        await self._tokens.adjust()
        await self._subscriptions.settle()
        _log.info(
            "agent ready",
            extra={"node": self._settings.node, "instance_types": len(self._served_types)},
        )
        self._manager.ready(f"serving {len(self._served_types)} instance types")
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._connection.is_connected:
                continue  # the reconnection is a change too
            try:
                await self._tokens.adjust()
            except nats.errors.FlushTimeoutError:
                _log.warning("NATS doesn't answer, adjusting the tokens again")
                self._changed.set()


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended.

    Once is not enough: nats-py swallows a cancellation that comes while it writes.
    """
    while unended := [task for task in tasks if not task.done()]:
        for task in unended:
            task.cancel()
        await asyncio.wait(unended, timeout=_CANCEL_AGAIN_S)


async def end_all_other_tasks() -> None:
    """Cancel every task of the loop but this one until all have ended.

    A connection that is closed while it reconnects leaves a task that swallows cancellations, and
    for that one `asyncio.run` would wait for ever: it cancels once.
    """
    await end_tasks(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _state_dir(settings: AgentSettings) -> Path:
    state_dir = Path(settings.state_dir)
    try:
        # Only for the agent: the journal holds user data.
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidConfiguration(
            "state_dir",
            f"{settings.state_dir} can't be made: {problem.strerror}",
            expected="a folder that the agent may write to",
        ) from problem
    return state_dir


def _check_credentials(path: Path) -> None:
    try:
        credentials = path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        why = f"{path} can't be read: {problem.strerror}"
    else:
        if is_credentials_file(credentials):
            return
        why = f"{path} holds no user JWT and seed"
    raise InvalidConfiguration(
        "nats.credentials_file", why, expected="a file as `nsc generate creds` writes"
    )
