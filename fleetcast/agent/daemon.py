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
from nats.aio.client import Client
from nats.protocol.parser import PERMISSIONS_ERR

from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.agent.instances import Instances
from fleetcast.agent.journal import Journal
from fleetcast.agent.launches import LaunchDesk
from fleetcast.agent.ledger import Ledger
from fleetcast.agent.limited_subscription import NatsSubscriptions
from fleetcast.agent.node_actions import NodeActions
from fleetcast.agent.tokens import CapacityTokens
from fleetcast.capacity import Resources, resources_of
from fleetcast.errors import FleetcastError
from fleetcast.instance_types import ec2_catalogue
from fleetcast.subjects import launch_subject, node_subscription, region_subscription

if TYPE_CHECKING:
    from fleetcast.agent.settings import AgentSettings

_log = logging.getLogger(__name__)

# A terminated instance stays in the journal that long, so that a late repeat of its launch
# finds it and isn't launched again.
_TOMBSTONE_S: Final = 86_400
_PING_INTERVAL_S: Final = 10


class ConnectionLost(FleetcastError):
    """The NATS connection is gone for good, or refuses what the agent needs."""


class Agent:
    """One node's agent. `run` it once."""

    def __init__(self, settings: AgentSettings) -> None:
        state_dir = Path(settings.state_dir)
        state_dir.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._instance_types = settings.served_types(ec2_catalogue())
        self._need_by_subject = self._needs()
        self._ledger = Ledger(settings.capacity.resources())
        self._journal = Journal.open(state_dir / "journal.sqlite")
        self._changed = asyncio.Event()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._instances = Instances(
            journal=self._journal,
            ledger=self._ledger,
            driver=SimulatedDriver(state_dir / "guests"),
            now_s=time.time,
            capacity_changed=self._changed.set,
        )
        self._desk = LaunchDesk(
            node=settings.node,
            zone=settings.zone,
            instance_types=self._instance_types,
            instances=self._instances,
            ledger=self._ledger,
            now_ms=lambda: time.time_ns() // 1_000_000,
            capacity_changed=self._changed.set,
        )
        self._connection = Client()
        self._tokens = CapacityTokens(
            NatsSubscriptions(self._connection, self._desk.deliver), self._room_by_subject
        )
        self._actions = NodeActions(
            node=settings.node,
            zone=settings.zone,
            instance_types=self._instance_types,
            instances=self._instances,
            ledger=self._ledger,
            tokens=self._tokens.remaining,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then leave in order.

        Raises ConnectionLost when the node can't be served any more: a supervisor restarts it.
        """
        await self._journal.forget_terminated(time.time() - _TOMBSTONE_S)
        await self._instances.restore()
        await self._connect()
        await self._subscribe_actions()
        desk = asyncio.create_task(self._desk.run())
        keeping = asyncio.create_task(self._keep_tokens())
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._tokens.adjust()
            await self._connection.flush()
            _log.info(
                "agent ready",
                extra={"node": self._settings.node, "instance_types": len(self._instance_types)},
            )
            await self._until(stopping, keeping)
            await self._leave()
        finally:
            for task in (desk, keeping, stopping):
                task.cancel()
            await asyncio.gather(desk, keeping, stopping, return_exceptions=True)
            self._fatal.cancel()  # from here on a closed connection is what we want
            await self._connection.close()
            self._journal.close()

    async def _until(self, stopping: asyncio.Task[bool], keeping: asyncio.Task[None]) -> None:
        """Wait for the word to stop. Raises what makes serving impossible."""
        waiting: list[asyncio.Future[Any]] = [stopping, keeping, self._fatal]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
        # One pass at a time: the last one is the leaving's.
        keeping.cancel()
        await asyncio.wait([keeping])

    # --- the connection --------------------------------------------------------------------

    async def _connect(self) -> None:
        nats_settings = self._settings.nats
        try:
            await self._connection.connect(
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
        except (nats.errors.Error, OSError) as problem:
            raise ConnectionLost(f"can't connect to {nats_settings.url}: {problem}") from problem

    async def _on_error(self, error: Exception) -> None:
        # nats-py has no class for it, only this constant part of the text.
        if PERMISSIONS_ERR in str(error):
            # Without its subjects the node looks alive and is not: better to be restarted.
            self._fail(f"NATS refuses what the agent needs: {error}")
        else:
            _log.warning("NATS error", extra={"why": repr(error)})

    async def _on_disconnected(self) -> None:
        if not self._connection.is_closed:
            _log.warning("disconnected from NATS, reconnecting")
            # Otherwise the client would renew them without their limits.
            await self._tokens.forget()

    async def _on_reconnected(self) -> None:
        _log.info("reconnected to NATS")
        self._changed.set()

    async def _on_closed(self) -> None:
        self._fail("the NATS connection was closed")

    def _fail(self, why: str) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(ConnectionLost(why))

    async def _subscribe_actions(self) -> None:
        region, node = self._settings.region, self._settings.node
        for subject in (node_subscription(region, node), region_subscription(region)):
            await self._connection.subscribe(subject, cb=self._actions.answer)

    # --- tokens ----------------------------------------------------------------------------

    def _needs(self) -> dict[str, Resources]:
        region, zone = self._settings.region, self._settings.zone
        needs: dict[str, Resources] = {}
        for name, instance_type in self._instance_types.items():
            need = resources_of(instance_type)
            needs[launch_subject(region, name)] = need
            if zone is not None:
                needs[launch_subject(region, name, zone)] = need
        return needs

    def _room_by_subject(self) -> dict[str, int]:
        return {subject: self._ledger.room(need) for subject, need in self._need_by_subject.items()}

    async def _keep_tokens(self) -> None:
        """Bring the tokens in line after every change; a burst of changes shares one pass."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._connection.is_connected:
                await self._tokens.adjust()

    async def _leave(self) -> None:
        _log.info("leaving", extra={"node": self._settings.node})
        self._ledger.close("stopping")
        await self._tokens.adjust()
        await self._desk.settled()
        await self._instances.idle()
        await self._connection.flush()
