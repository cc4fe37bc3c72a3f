"""Answers what one node, or every agent of a region, is asked. Also when full or closed.

Each request is answered by a task of its own. nats-py would handle one after another: each with an
fsync of its own, and all would wait for one that waits, until most of them had expired.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast import messages
from fleetcast.agent.cordon import CORDONED, OPEN, CordonWish
from fleetcast.agent.holds import OrderExpired
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.errors import InvalidMessage
from fleetcast.subjects import (
    NodeAction,
    RegionAction,
    action_of,
    node_subscription,
    region_subscription,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fleetcast.agent.capacity.report import CapacityReport
    from fleetcast.agent.drain import Drain
    from fleetcast.agent.holds import Holds
    from fleetcast.agent.instances import Instances
    from fleetcast.agent.nats_client import AgentClient
    from fleetcast.agent.owner_actions import Outcome, OwnerActions
    from fleetcast.agent.request import Request

_log = logging.getLogger(__name__)

# As long as their records stay visible, and no more than go into one message (1 MiB) beside what
# lives here. Who misses one that has ended takes it for gone, which it is.
_ENDED_ARE_LISTED_S: Final = 3_600
_MAX_ENDED_LISTED: Final = 1_000


class NodeActions:
    """The answers of one node. now_s: epoch seconds."""

    def __init__(
        self,
        *,
        node: str,
        zone: str | None,
        instances: Instances,
        holds: Holds,
        owner_actions: OwnerActions,
        drain: Drain,
        capacity_report: CapacityReport,
        now_s: Callable[[], float],
    ) -> None:
        self._node = node
        self._zone = zone
        self._instances = instances
        self._holds = holds
        self._owner_actions = owner_actions
        self._drain = drain
        self._capacity_report = capacity_report
        self._now_s = now_s
        self._answering: set[asyncio.Task[None]] = set()

    async def listen(self, connection: AgentClient, *, region: str) -> None:
        """Answer from now on. Raises nats.errors.Error when the connection is closed."""

        def to_node(message: Request) -> None:
            self._begin(self.answer_node(message))

        def to_region(message: Request) -> None:
            self._begin(self.answer_region(message))

        await connection.hear(node_subscription(region, self._node), to_node)
        await connection.hear(region_subscription(region), to_region)

    def _begin(self, answering: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def answered(self) -> None:
        """Wait until everything that has been asked by now is answered."""
        if self._answering:
            await asyncio.wait(self._answering)

    async def answer_node(self, message: Request) -> None:
        """Answer one request to this node alone."""
        await self._answer(message, self._node_reply)

    async def answer_region(self, message: Request) -> None:
        """Answer one request to every agent of the region."""
        await self._answer(message, self._region_reply)

    async def _answer(
        self,
        message: Request,
        reply_to: Callable[[str, bytes], Awaitable[messages.Message]],
    ) -> None:
        try:
            reply = await reply_to(action_of(message.subject), message.data)
            if message.reply:
                await message.respond(messages.encode(reply))
        except InvalidMessage as problem:
            # Silence is the safe answer: the requester reads it as unknown and asks again.
            _log.warning(
                "request not understood",
                extra={"subject": message.subject, "why": str(problem)},
            )
        except OrderExpired as problem:
            _log.info("late order ignored", extra={"subject": message.subject, "why": str(problem)})
        except JournalUnwritable as problem:
            _log.critical(
                "request not carried out",
                extra={"subject": message.subject, "why": str(problem)},
            )
        except Exception:  # noqa: BLE001 - the boundary of a task: nobody else would see it
            _log.exception("request not answered", extra={"subject": message.subject})

    async def _node_reply(self, action: str, payload: bytes) -> messages.Message:
        match action:
            case NodeAction.COMMIT:
                request = messages.decode(payload, messages.AttemptRequest)
                return self._instances_reply(await self._holds.commit(request))
            case NodeAction.RELEASE:
                request = messages.decode(payload, messages.AttemptRequest)
                reports = await self._holds.give_up(request, "released by its launch")
                return self._instances_reply(reports)
            case NodeAction.CORDON | NodeAction.UNCORDON:
                messages.decode(payload, messages.CordonRequest)
                wish = CORDONED if action == NodeAction.CORDON else OPEN
                return self._cordon_reply(await self._drain.cordon.set(wish))
            case NodeAction.DRAIN:
                wanted = messages.decode(payload, messages.DrainRequest)
                wish = CordonWish(state="draining", stops=wanted.stop)
                problem = "" if wanted.only_look else await self._drain.cordon.set(wish)
                return self._cordon_reply(problem)
            case _:
                asked = messages.decode(payload, messages.InstancesRequest)
                return await self._owner_reply(action, asked.instance_ids)

    async def _owner_reply(self, action: str, instance_ids: tuple[str, ...]) -> messages.Message:
        owner_actions = self._owner_actions
        match action:
            case NodeAction.DESCRIBE:
                return self._instances_reply(self._instances.reports(instance_ids))
            case NodeAction.TERMINATE:
                return self._instances_reply(await owner_actions.terminate(instance_ids))
            case NodeAction.STOP:
                return self._outcome_reply(await owner_actions.stop(instance_ids))
            case NodeAction.START:
                return self._outcome_reply(await owner_actions.start(instance_ids))
            case NodeAction.REBOOT:
                return self._outcome_reply(await owner_actions.reboot(instance_ids))
            case NodeAction.GET_CONSOLE_OUTPUT:
                return await self._console_reply(instance_ids)
            case _:
                raise InvalidMessage(f"this agent doesn't know the node action {action!r}")

    async def _region_reply(self, action: str, payload: bytes) -> messages.Message:
        match action:
            case RegionAction.CANCEL_LAUNCH:
                request = messages.decode(payload, messages.AttemptRequest)
                reports = await self._holds.give_up(request, "its launch was cancelled")
                return self._instances_reply(reports)
            case RegionAction.LOCATE_LAUNCH:
                launch_id = messages.decode(payload, messages.LocateRequest).launch_id
                return self._instances_reply(await self._instances.locate(launch_id))
        asked = messages.decode(payload, messages.RegionRequest)
        match action:
            case RegionAction.INVENTORY:
                return self._instances_reply(self._instances.reports(self._listed()))
            case RegionAction.DESCRIBE_CAPACITY:
                return self._capacity_reply(asked.preview)
            case RegionAction.DESCRIBE_INSTANCE_TYPES:
                return self._capacity_report.instance_types()
            case _:
                raise InvalidMessage(f"this agent doesn't know the region action {action!r}")

    def _capacity_reply(
        self, preview: messages.LaunchPreview | msgspec.UnsetType
    ) -> messages.CapacityReply:
        reply = self._capacity_report.capacity()
        if preview is msgspec.UNSET:
            return reply
        instance_type = self._capacity_report.served_types.get(preview.instance_type)
        if instance_type is None:
            return reply
        fault = self._owner_actions.fault_of(preview.request(), instance_type)
        return msgspec.structs.replace(reply, fault=fault or msgspec.UNSET)

    def _listed(self) -> list[str]:
        """Return what an inventory names: all that is here, and what has ended of late."""
        since_s = self._now_s() - _ENDED_ARE_LISTED_S
        here = [entry for entry in self._instances if entry.state != "terminated"]
        ended = [
            entry
            for entry in self._instances
            if entry.state == "terminated" and entry.changed_at_s >= since_s
        ]
        latest = heapq.nlargest(_MAX_ENDED_LISTED, ended, key=lambda entry: entry.changed_at_s)
        return [entry.guest.instance_id for entry in (*here, *latest)]

    async def _console_reply(self, instance_ids: tuple[str, ...]) -> messages.ConsoleReply:
        if len(instance_ids) != 1:
            raise InvalidMessage(f"the console of {len(instance_ids)} instances at once")
        (instance_id,) = instance_ids
        if self._instances.get(instance_id) is None:
            return messages.ConsoleReply(node=self._node, output_base64=None)
        console = await self._owner_actions.console_output(instance_id)
        return messages.ConsoleReply(
            node=self._node,
            output_base64=base64.b64encode(console.output).decode() if console else "",
            written_at_ms=console.written_at_ms if console else None,
        )

    def _cordon_reply(self, problem: str) -> messages.CordonReply:
        return messages.CordonReply(
            node=self._node,
            state=self._drain.cordon.wish.state,
            closed=self._drain.cordon.closed,
            instances=tuple(entry.report() for entry in self._drain.left()),
            stopped_n=sum(entry.state == "stopped" for entry in self._instances),
            problem=problem,
        )

    def _outcome_reply(self, outcome: Outcome) -> messages.InstancesReply:
        reply = self._instances_reply(outcome.reports)
        return msgspec.structs.replace(reply, refused=outcome.refused or msgspec.UNSET)

    def _instances_reply(
        self,
        reports: tuple[messages.InstanceReport, ...],
    ) -> messages.InstancesReply:
        return messages.InstancesReply(node=self._node, zone=self._zone, instances=reports)
