"""One agent process: connects, serves, leaves.

Owns the order of things: what the node already holds is taken up before the first launch is asked
for, and on the way out the launch subjects are left first. What an agent consists of is put
together in `node`; what becomes of its connection is `connection`'s.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nkeys import NkeysError  # type: ignore[import-untyped] # it has no annotations

from fleetcast.agent.connection import Connection
from fleetcast.agent.ending_tasks import end_tasks
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.agent.nats_client import AgentClient
from fleetcast.agent.nats_troubles import ConnectionLost, told
from fleetcast.agent.node import Node
from fleetcast.agent.service_manager import ServiceManager
from fleetcast.agent.watchdog import Watchdog

if TYPE_CHECKING:
    from fleetcast.agent.settings import AgentSettings

_log = logging.getLogger(__name__)

_FORGET_EVERY_S: Final = 3_600
# A service manager waits 90 s and then kills.
_LEAVE_WITHIN_S: Final = 10
_NO_MANAGER: Final = ServiceManager(None)


class Agent:
    """One node's agent. `run` it once. manager: told when it serves, and that it still does.

    Raises what Node raises.
    """

    def __init__(self, settings: AgentSettings, manager: ServiceManager = _NO_MANAGER) -> None:
        self._settings = settings
        self._manager = manager
        self._client = AgentClient()
        self._node = Node(settings, self._client)
        self._connection = Connection(
            self._client,
            settings.nats,
            manager=manager,
            broken=self._node.subscriptions.connection_lost,
            back=self._node.begin_anew,
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
            self._connection.may_end()
            await end_tasks(serving, stopping)
            await self._connection.close()
            self._node.journal.close()

    async def _first(self, *waiting: asyncio.Task[Any]) -> None:
        """Wait for the first of these to end. Raises what makes serving impossible."""
        gone = self._connection.gone
        done, _ = await asyncio.wait([*waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()

    async def _serve(self) -> None:
        node = self._node
        await node.guests.restore()
        node.bootable.look()  # before anybody can ask
        # Guests end whether NATS is there or not.
        following = asyncio.create_task(node.guests.keep_following_ends())
        watchdog = Watchdog(
            self._client, round_trip=node.subscriptions.settle, manager=self._manager
        )
        try:
            await asyncio.gather(
                watchdog.keep_watching(),
                self._serve_requests(),
                node.host.load.keep_sampling(),
                following,
                node.host.watch.keep_looking(
                    node.host.ledger,
                    taken=node.host.driver.in_use,
                    capacity_changed=node.changed.set,
                ),
                node.bootable.keep_looking(),
                self._serve_metrics(),
                node.drain.keep_draining(),
                node.holds.keep_lapsing(),
                self._keep_forgetting(),
            )
        except (nats.errors.Error, NkeysError) as problem:
            raise ConnectionLost(f"NATS can't be used: {told(problem)}") from problem
        finally:
            await end_tasks(following)

    async def _serve_requests(self) -> None:
        node, region = self._settings.node, self._settings.region
        await self._connection.connect(f"fleetcast-agent {region} {node}")
        await self._node.actions.listen(self._client, region=region)
        await asyncio.gather(self._node.desk.run(), self._keep_tokens())

    async def _keep_tokens(self) -> None:
        """Bring the tokens in line after every change; a burst of changes shares one pass."""
        node, types_n = self._node, len(self._node.host.served_types)
        await node.tokens.adjust()
        await node.subscriptions.settle()
        _log.info("agent ready", extra={"node": self._settings.node, "instance_types": types_n})
        self._manager.ready(f"serving {types_n} instance types")
        while True:
            await node.changed.wait()
            node.changed.clear()
            if not self._client.is_connected:
                continue  # the reconnection is a change too
            try:
                await node.tokens.adjust()
            except nats.errors.FlushTimeoutError:
                _log.warning("NATS doesn't answer, adjusting the tokens again")
                node.changed.set()

    async def _serve_metrics(self) -> None:
        port = self._settings.telemetry.prometheus_port
        if port is None:
            return
        # Here, so that an agent that serves none doesn't carry what serves them.
        from fleetcast.agent.metrics import Metrics  # noqa: PLC0415

        metrics = Metrics(
            region=self._settings.region,
            capacity_report=self._node.capacity_report,
            instances=self._node.instances,
            launches=self._node.desk.outcomes,
        )
        await metrics.serve(port)

    async def _keep_forgetting(self) -> None:
        while True:
            try:
                await self._node.instances.forget()
            except JournalUnwritable as problem:
                _log.warning("nothing forgotten", extra={"why": str(problem)})
            await asyncio.sleep(_FORGET_EVERY_S)

    async def _leave(self) -> None:
        self._manager.stopping()
        if not self._client.is_connected:
            return
        node = self._node
        _log.info("leaving", extra={"node": self._settings.node})
        node.host.ledger.close("stopping")
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                await node.tokens.adjust()
                await node.desk.settled()
                await node.actions.answered()
                await node.guests.idle()
            await node.subscriptions.settle()
        except nats.errors.Error as problem:
            # The server has gone, and with it those who wait for an answer.
            _log.warning("left without the last answers", extra={"why": repr(problem)})
        except TimeoutError:
            # The next agent goes on with them: they are in the journal.
            _log.warning("left with work unfinished", extra={"instances": node.guests.at_work})
