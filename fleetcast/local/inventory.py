"""What a region's nodes themselves say they hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import nats

from fleetcast import messages
from fleetcast.subjects import RegionAction, region_subject

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_DEADLINE_S: Final = 10.0


async def held_instances(nats_url: str, region: str, *, nodes: int) -> list[str]:
    """Ask all nodes of a region for their inventory; return the ids that are not terminated.

    nodes: how many have to answer. An id that two nodes hold comes twice. Raises TimeoutError if
    fewer answer within 10 s.
    """
    answers: asyncio.Queue[Msg] = asyncio.Queue()
    connection = await nats.connect(nats_url)
    try:
        inbox = connection.new_inbox()
        await connection.subscribe(inbox, cb=answers.put)
        await connection.publish(
            region_subject(region, RegionAction.INVENTORY),
            messages.encode(messages.RegionRequest()),
            reply=inbox,
        )
        async with asyncio.timeout(_DEADLINE_S):
            replies = [
                messages.decode((await answers.get()).data, messages.InstancesReply)
                for _ in range(nodes)
            ]
    finally:
        await connection.close()
    return [
        report.instance_id
        for reply in replies
        for report in reply.instances
        if report.state != "terminated"
    ]
