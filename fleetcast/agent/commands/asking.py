"""How the commands of a node's operator ask its agent: over NATS, as everybody does.

The agent's own NATS settings are used, so that a host needs no others.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nats.errors
from nats.aio.client import Client
from nkeys import NkeysError  # type: ignore[import-untyped] # it has no annotations

from fleetcast import messages
from fleetcast.agent.connection import check_credentials
from fleetcast.agent.nats_troubles import close_in_time, told
from fleetcast.errors import FleetcastError
from fleetcast.subjects import node_subject

if TYPE_CHECKING:
    from fleetcast.agent.settings import AgentSettings
    from fleetcast.subjects import NodeAction

_CONNECT_WITHIN_S: Final = 10
_ANSWER_WITHIN_S: Final = 10


class NodeSilent(FleetcastError):
    """The node's agent could not be asked, or doesn't answer. The message says which."""


async def ask_node(
    settings: AgentSettings, action: NodeAction, request: messages.Message
) -> messages.CordonReply:
    """Ask the agent that these settings are of, on a connection for this alone.

    Raises NodeSilent, and InvalidConfiguration for credentials that are none.
    """
    if settings.nats.credentials_file is not None:
        check_credentials(Path(settings.nats.credentials_file))
    connection = Client()
    heard: list[str] = []

    async def hear(error: Exception) -> None:
        heard.append(told(error))

    try:
        connecting = connection.connect(
            settings.nats.url,
            name=f"fleetcast-agent {action} {settings.region} {settings.node}",
            user_credentials=settings.nats.credentials_file,
            allow_reconnect=False,
            # nats-py tries that often all the same, and tells why it failed to nobody else.
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=hear,
        )
        try:
            await asyncio.wait_for(connecting, _CONNECT_WITHIN_S)
        except (nats.errors.Error, NkeysError, OSError) as problem:
            why = heard[0] if heard else told(problem)
            raise NodeSilent(f"can't connect to {settings.nats.url}: {why}") from problem
        return await _answer(connection, settings, action, request)
    except _NoAnswer as problem:
        says = f"; NATS says: {heard[0]}" if heard else ""
        raise NodeSilent(f"{problem}{says}") from problem
    finally:
        await close_in_time(connection)


class _NoAnswer(FleetcastError):
    """It was asked, and nothing came back."""


async def _answer(
    connection: Client, settings: AgentSettings, action: NodeAction, request: messages.Message
) -> messages.CordonReply:
    where = f"node {settings.node} in {settings.region}"
    try:
        answer = await connection.request(
            node_subject(settings.region, settings.node, action),
            messages.encode(request),
            timeout=_ANSWER_WITHIN_S,
        )
    except nats.errors.NoRespondersError:
        raise _NoAnswer(f"no agent answers for {where}: is it running?") from None
    except nats.errors.TimeoutError as problem:
        why = f"doesn't answer within {_ANSWER_WITHIN_S} s; it may still do what it was asked"
        raise _NoAnswer(f"the agent of {where} {why}") from problem
    except (nats.errors.Error, OSError) as problem:
        raise _NoAnswer(f"the agent of {where}: {told(problem)}") from problem
    return messages.decode(answer.data, messages.CordonReply)
