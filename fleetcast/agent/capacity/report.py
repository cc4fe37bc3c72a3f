"""What a node says of itself: its room, its load, its clock, and what it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast import __version__, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.capacity.host_load import HostLoad
    from fleetcast.agent.capacity.ledger import Ledger
    from fleetcast.agent.capacity.served_types import ServedTypes
    from fleetcast.agent.instances import Instances


class CapacityReport:
    """Makes the reports of one node.

    accelerator: what runs guests' CPUs. tokens: armed launches by subject, as the server holds
    them. now_ms: epoch milliseconds.
    """

    def __init__(  # noqa: PLR0913 - each is a part of what is reported
        self,
        *,
        node: str,
        zone: str | None,
        served_types: ServedTypes,
        instances: Instances,
        ledger: Ledger,
        host_load: HostLoad,
        accelerator: str | None,
        tokens: Callable[[], dict[str, int]],
        now_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._zone = zone
        self.served_types = served_types
        self._instances = instances
        self._ledger = ledger
        self._host_load = host_load
        self._accelerator = accelerator
        self._tokens = tokens
        self._now_ms = now_ms

    def capacity(self) -> messages.CapacityReply:
        """Answer DescribeCapacity."""
        return messages.CapacityReply(
            node=self._node,
            zone=self._zone,
            closed=self._ledger.closed,
            total=self._ledger.total,
            free=self._ledger.free,
            room=self.served_types.room(self._ledger),
            armed=self._tokens(),
            load=messages.NodeLoad(
                cpu_utilization=self._host_load.cpu_utilization,
                memory_utilization=self._host_load.memory_utilization,
                gpu_utilization=self._host_load.gpu_utilization,
                running_instances=self._instances.running_n,
                disk_utilization=self._host_load.disk_utilization,
            ),
            version=__version__,
            now_ms=self._now_ms(),
            accelerator=self._accelerator,
        )

    def instance_types(self) -> messages.InstanceTypesReply:
        """Answer DescribeInstanceTypes."""
        return messages.InstanceTypesReply(
            node=self._node,
            zone=self._zone,
            instance_types=tuple(self.served_types),
            room=self.served_types.room(self._ledger),
        )
