"""How the commands of a node's operator ask its agent: over NATS, as everybody does.

The agent's own NATS settings are used, so that a host needs no others.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.client import Client

from fleetcast import messages
from fleetcast.agent.watchdog import close_in_time, told
from fleetcast.errors import FleetcastError
from fleetcast.subjects import node_subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fleetcast.agent.settings import AgentSettings
    from fleetcast.subjects import NodeAction

_CONNECT_WITHIN_S: Final = 10
_ANSWER_WITHIN_S: Final = 10


class NodeSilent(FleetcastError):
    """The node's agent could not be asked, or doesn't answer. The message says which."""


class NodeLine:
    """A connection to one node's agent."""

    def __init__(self, connection: Client, *, region: str, node: str) -> None:
        self._connection = connection
        self._region = region
        self._node = node
        self._refused = ""

    async def heard(self, error: Exception) -> None:
        """Take note of what NATS tells outside of any answer: that it refuses what is asked."""
        self._refused = f"; NATS says: {error}"

    async def ask(self, action: NodeAction, request: messages.Message) -> messages.CordonReply:
        """Ask the agent. Raises NodeSilent."""
        where = f"node {self._node} in {self._region}"
        try:
            answer = await self._connection.request(
                node_subject(self._region, self._node, action),
                messages.encode(request),
                timeout=_ANSWER_WITHIN_S,
            )
        except nats.errors.NoRespondersError:
            raise NodeSilent(f"no agent answers for {where}: is it running?") from None
        except (nats.errors.Error, OSError) as problem:
            raise NodeSilent(
                f"the agent of {where} doesn't answer: {told(problem)}{self._refused}"
            ) from problem
        return messages.decode(answer.data, messages.CordonReply)


@contextlib.asynccontextmanager
async def node_line(settings: AgentSettings) -> AsyncIterator[NodeLine]:
    """Connect to the agent that these settings are of. Raises NodeSilent."""
    connection = Client()
    line = NodeLine(connection, region=settings.region, node=settings.node)
    try:
        connecting = connection.connect(
            settings.nats.url,
            name=f"fleetcast-agent command {settings.region} {settings.node}",
            user_credentials=settings.nats.credentials_file,
            max_reconnect_attempts=-1,
            allow_reconnect=True,
            error_cb=line.heard,
        )
        try:
            await asyncio.wait_for(connecting, _CONNECT_WITHIN_S)
        except (nats.errors.Error, OSError, TimeoutError) as problem:
            raise NodeSilent(f"can't connect to {settings.nats.url}: {told(problem)}") from problem
        yield line
    finally:
        await close_in_time(connection)
