"""What a dry run of RunInstances is told: whether it would work now, and the room by region."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from fleetcast import messages
from fleetcast.errors import (
    DryRunOperation,
    InsufficientInstanceCapacity,
    InvalidMessage,
    RefusedByNode,
    ServiceUnavailable,
)
from fleetcast.subjects import RegionAction, region_subject
from lambdas.bus import NoResponders, RegionError

if TYPE_CHECKING:
    from lambdas.run_instances.launch_parameters import LaunchParameters
    from lambdas.run_instances.services import Services

_TIMEOUT_S: Final = 1.0


class _Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Room in one region. certain: everybody there has been heard. fault: why one would refuse."""

    region: str
    room: int
    certain: bool
    fault: messages.LaunchFault | None = None

    def __str__(self) -> str:
        return f"{self.region}: {self.room}" + ("" if self.certain else " or more (not all heard)")


async def preview_launch(services: Services, asked: LaunchParameters) -> NoReturn:
    """Raise what the launch would end with now: DryRunOperation if it would work.

    Raises InsufficientInstanceCapacity, ServiceUnavailable or a node's refusal if it would not.
    """
    names = [asked.region] if asked.region else services.settings.region_names
    previews = await asyncio.gather(*(_preview(services, asked, region) for region in names))
    rooms = ", ".join(str(preview) for preview in previews)
    wanted = f"{asked.min_count} x {asked.instance_type}"
    for preview in previews:
        if preview.fault is not None:
            raise RefusedByNode(preview.fault.code, preview.fault.message)
    if any(preview.room >= asked.min_count for preview in previews):
        raise DryRunOperation(
            "Request would have succeeded, but DryRun flag is set. "
            f"Room for {asked.instance_type} now: {rooms}."
        )
    if all(preview.certain for preview in previews):
        raise InsufficientInstanceCapacity(f"There is no room for {wanted} now: {rooms}.")
    raise ServiceUnavailable(f"Could not find out whether there is room for {wanted}: {rooms}.")


async def _preview(services: Services, asked: LaunchParameters, region: str) -> _Preview:
    known = set(await asyncio.to_thread(services.known_nodes, region))
    try:
        payloads = await services.bus.gather(
            region,
            region_subject(region, RegionAction.DESCRIBE_CAPACITY),
            messages.encode(_request(asked)),
            timeout_s=_TIMEOUT_S,
            expected=len(known) or None,
        )
        nodes = [messages.decode(payload, messages.CapacityReply) for payload in payloads]
    except NoResponders:
        return _Preview(region=region, room=0, certain=True)
    except (RegionError, InvalidMessage):
        return _Preview(region=region, room=0, certain=False)
    roomy = [
        node
        for node in nodes
        if asked.instance_type in node.room and asked.zone in {None, node.zone}
    ]
    return _Preview(
        region=region,
        room=sum(node.room[asked.instance_type] for node in roomy),
        certain=known <= {node.node for node in nodes},
        fault=next((node.fault for node in roomy if node.fault is not msgspec.UNSET), None),
    )


def _request(asked: LaunchParameters) -> messages.RegionRequest:
    return messages.RegionRequest(
        preview=messages.LaunchPreview(
            instance_type=asked.instance_type,
            image_id=asked.image_id,
            key_name=asked.key_name,
            root_disk_gib=asked.root_disk.size_gib or msgspec.UNSET,
        )
    )
