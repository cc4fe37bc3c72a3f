"""What a node is asked over NATS is answered side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nats
import pytest

from fleetcast import messages
from fleetcast.agent.nats_client import AgentClient
from fleetcast.subjects import RegionAction, region_subject
from tests.agent_parts import HeldUpJournal, attempt_request, unit_node
from tests.nats_process import NatsProcess
from tests.settled_client import settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.client import Client
    from nats.aio.msg import Msg

CANCEL = region_subject("r", RegionAction.CANCEL_LAUNCH)
DESCRIBE = region_subject("r", RegionAction.DESCRIBE_CAPACITY)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    async with NatsProcess(tmp_path) as running:
        yield running


@pytest.fixture
async def agent(server: NatsProcess) -> AsyncIterator[AgentClient]:
    connection = AgentClient()
    await connection.connect(server.url)
    yield connection
    await connection.close()


@pytest.fixture
async def requester(server: NatsProcess) -> AsyncIterator[Client]:
    connection = await nats.connect(server.url)
    yield connection
    await connection.close()


async def test_an_order_that_waits_for_the_disk_keeps_nobody_else_waiting(
    tmp_path: Path, agent: AgentClient, requester: Client
) -> None:
    async with unit_node(tmp_path) as node:
        await node.actions.listen(agent, region="r")
        await settled(agent)
        disk = HeldUpJournal(node.journal)
        try:
            answers = await requester.subscribe("answers")
            cancel = messages.encode(attempt_request(1))
            await requester.publish(CANCEL, cancel, reply="answers")
            asked = messages.encode(messages.RegionRequest())
            described: Msg = await requester.request(DESCRIBE, asked, timeout=5)
        finally:
            disk.let_go()
        assert messages.decode(described.data, messages.CapacityReply).node == "n1"
        await node.actions.answered()
        await settled(agent)
        cancelled = await answers.next_msg(timeout=5)
        assert messages.decode(cancelled.data, messages.InstancesReply).instances == ()
