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
from fleetcast.launch_story import shortened
from fleetcast.subjects import RegionAction, region_subject
from lambdas.bus import NoResponders, RegionError

if TYPE_CHECKING:
    from lambdas.run_instances.launch_parameters import LaunchParameters
    from lambdas.run_instances.services import Services

_TIMEOUT_S: Final = 1.0
_NOT_ALL_HEARD: Final = "not all heard"


class _Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Room in one region.

    doubt: why there may be more; "": there isn't. refusal: what every node would say.
    """

    region: str
    room: int
    doubt: str = ""
    refusal: RefusedByNode | None = None

    def __str__(self) -> str:
        return f"{self.region}: {self.room}" + (f" or more ({self.doubt})" if self.doubt else "")


async def preview_launch(services: Services, asked: LaunchParameters) -> NoReturn:
    """Raise what the launch would end with now: DryRunOperation if it would work.

    Raises InsufficientInstanceCapacity, ServiceUnavailable or a node's refusal if it would not.
    """
    names = [asked.region] if asked.region else services.settings.region_names
    previews = await asyncio.gather(*(_preview(services, asked, region) for region in names))
    rooms = ", ".join(str(preview) for preview in previews)
    wanted = f"{asked.min_count} x {asked.instance_type}"
    for preview in previews:
        if preview.refusal:
            raise preview.refusal
    if any(preview.room >= asked.min_count for preview in previews):
        raise DryRunOperation(
            "Request would have succeeded, but DryRun flag is set. "
            f"Room for {asked.instance_type} now: {rooms}."
        )
    if not any(preview.doubt for preview in previews):
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
        return _Preview(region=region, room=0)
    except (RegionError, InvalidMessage):
        return _Preview(region=region, room=0, doubt=_NOT_ALL_HEARD)
    room, doubt = 0, "" if known <= {node.node for node in nodes} else _NOT_ALL_HEARD
    for node in nodes:
        if asked.instance_type not in node.room or asked.zone not in {None, node.zone}:
            continue
        if node.fault is msgspec.UNSET:
            room += node.room[asked.instance_type]
        elif node.fault.code is None:  # a launch would go on to other nodes
            doubt = f"{node.node} can't say: {shortened(node.fault.message)}"
        else:
            refusal = RefusedByNode(node.fault.code, shortened(node.fault.message))
            return _Preview(region=region, room=0, refusal=refusal)
    return _Preview(region=region, room=room, doubt=doubt)


def _request(asked: LaunchParameters) -> messages.RegionRequest:
    return messages.RegionRequest(
        preview=messages.LaunchPreview(
            instance_type=asked.instance_type,
            image_id=asked.image_id,
            key_name=asked.key_name,
            root_disk_gib=asked.root_disk.size_gib or msgspec.UNSET,
        )
    )
