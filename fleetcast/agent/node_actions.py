"""Answers what one node, or every agent of a region, is asked. Also when full or closed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fleetcast import messages
from fleetcast.agent.journal import JournalUnwritable
from fleetcast.capacity import resources_of
from fleetcast.errors import InvalidMessage
from fleetcast.subjects import NodeAction, RegionAction, action_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fleetcast.agent.host_load import HostLoad
    from fleetcast.agent.instances import Instances
    from fleetcast.agent.ledger import Ledger
    from fleetcast.agent.request import Request
    from fleetcast.instance_types import InstanceType

_log = logging.getLogger(__name__)


class NodeActions:
    """The answers of one node. tokens: armed launches by subject, as the server holds them."""

    def __init__(
        self,
        *,
        node: str,
        zone: str | None,
        instance_types: Mapping[str, InstanceType],
        instances: Instances,
        ledger: Ledger,
        host_load: HostLoad,
        tokens: Callable[[], dict[str, int]],
    ) -> None:
        self._node = node
        self._zone = zone
        self._instance_types = instance_types
        self._instances = instances
        self._ledger = ledger
        self._host_load = host_load
        self._tokens = tokens

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
        except InvalidMessage as problem:
            # Silence is the safe answer: the requester reads it as unknown and asks again.
            _log.warning(
                "request not understood",
                extra={"subject": message.subject, "why": str(problem)},
            )
        except JournalUnwritable as problem:
            _log.critical(
                "request not carried out",
                extra={"subject": message.subject, "why": str(problem)},
            )
        else:
            if message.reply:
                await message.respond(messages.encode(reply))

    async def _node_reply(self, action: str, payload: bytes) -> messages.Message:
        match action:
            case NodeAction.TERMINATE:
                asked = messages.decode(payload, messages.InstancesRequest)
                return self._instances_reply(await self._instances.terminate(asked.instance_ids))
            case NodeAction.DESCRIBE:
                asked = messages.decode(payload, messages.InstancesRequest)
                return self._instances_reply(self._instances.reports(asked.instance_ids))
            case _:
                raise InvalidMessage(f"this agent doesn't know the node action {action!r}")

    async def _region_reply(self, action: str, payload: bytes) -> messages.Message:
        messages.decode(payload, messages.RegionRequest)
        match action:
            case RegionAction.INVENTORY:
                return self._instances_reply(self._instances.reports())
            case RegionAction.DESCRIBE_CAPACITY:
                return self._capacity_reply()
            case _:
                raise InvalidMessage(f"this agent doesn't know the region action {action!r}")

    def _instances_reply(
        self,
        reports: tuple[messages.InstanceReport, ...],
    ) -> messages.InstancesReply:
        return messages.InstancesReply(node=self._node, instances=reports)

    def _capacity_reply(self) -> messages.CapacityReply:
        rooms = {
            name: self._ledger.room(resources_of(instance_type))
            for name, instance_type in self._instance_types.items()
        }
        return messages.CapacityReply(
            node=self._node,
            zone=self._zone,
            closed=self._ledger.closed,
            total=self._ledger.total,
            free=self._ledger.free,
            room={name: room for name, room in rooms.items() if room},
            armed=self._tokens(),
            load=messages.NodeLoad(
                cpu_utilization=self._host_load.cpu_utilization,
                memory_utilization=self._host_load.memory_utilization,
                running_instances=self._instances.running_n,
            ),
        )
