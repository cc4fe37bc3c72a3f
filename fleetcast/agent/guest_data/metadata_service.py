"""Serves each instance its metadata: on a socket of its own, or on the address of a bridge.

On a socket, which the guest's own QEMU connects to (user_network), an instance is known by the
socket. On a bridge all guests ask the same address, and an instance is known by its MAC address,
which the host's table of neighbours has for the sender's. That is as certain as the bridge is:
where guests may take each other's addresses, they can read each other's data.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.guest_data.metadata_answers import Answer, Tokens, answer
from fleetcast.agent.guest_data.metadata_http import Listener
from fleetcast.agent.guest_data.neighbours import NEIGHBOURS, mac_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fleetcast.agent.guest_data import InstanceFacts
    from fleetcast.agent.guest_data.metadata_http import Request

_log = logging.getLogger(__name__)

_SOCKET_NAME: Final = "metadata.sock"


class MetadataServices:
    """The metadata services of a node's instances, in the running event loop.

    now_s: any steady clock; tokens expire by it.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        # Not kept: after a restart of the agent, programs are told 401 and ask for a new token.
        self._tokens = Tokens(secrets.token_bytes(32))
        self._facts: dict[str, InstanceFacts] = {}
        self._listeners: dict[str, Listener] = {}

    async def serve(self, facts: InstanceFacts, folder: Path) -> Path:
        """Serve an instance on a socket in its folder, and return the socket's path.

        Said again, also by an agent that was restarted, it serves what the facts are now; the guest
        runs on. Raises OSError if the socket can't be made.
        """
        path, instance_id = folder / _SOCKET_NAME, facts.instance_id
        self._facts[instance_id] = facts
        if instance_id not in self._listeners:
            await self._listen(
                instance_id,
                _bind(path),
                lambda request: self._answer(self._facts[instance_id], request),
            )
        return path

    async def serve_bridge(self, bridge: str, address: str, port: int) -> None:
        """Serve all instances that are on a bridge, on an address of the bridge; may be repeated.

        Raises OSError if the address is not the host's, or taken.
        """

        def respond(request: Request) -> Answer:
            facts = self._facts_on(bridge, request.sender)
            return self._answer(facts, request) if facts else Answer(403, b"")

        if bridge not in self._listeners:
            await self._listen(bridge, socket.create_server((address, port)), respond)

    async def forget(self, instance_id: str) -> None:
        """Serve an instance no longer; nothing to do if it isn't served."""
        listener = self._listeners.pop(instance_id, None)
        if listener is not None:
            await listener.close()
        self._facts.pop(instance_id, None)

    async def close(self) -> None:
        """Serve nobody any longer."""
        listeners = list(self._listeners.values())
        self._listeners.clear()
        for listener in listeners:
            await listener.close()
        self._facts.clear()

    async def _listen(
        self, name: str, bound: socket.socket, respond: Callable[[Request], Answer]
    ) -> None:
        # Known before it listens: whoever wants the same meanwhile needs no second one.
        listener = self._listeners[name] = Listener(respond)
        try:
            await listener.open(bound)
        except BaseException:
            del self._listeners[name]
            bound.close()
            raise

    def _facts_on(self, bridge: str, sender: str | None) -> InstanceFacts | None:
        if sender is None:
            return None
        mac = mac_of(sender, bridge=bridge, table=NEIGHBOURS.read_text(encoding="ascii"))
        for facts in self._facts.values():
            if facts.mac == mac:
                return msgspec.structs.replace(facts, private_address=sender)
        _log.warning("a guest asks that this node doesn't run", extra={"mac": mac, "from": sender})
        return None

    def _answer(self, facts: InstanceFacts, request: Request) -> Answer:
        return answer(
            facts,
            self._tokens,
            method=request.method,
            target=request.target,
            headers=request.headers,
            now_s=self._now_s(),
        )


def _bind(path: Path) -> socket.socket:
    """Return a socket with that name, which only this user can connect to.

    Bound through the folder: the address of a socket holds a hundred bytes, a path may be longer.
    """
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{path.name}")
            path.chmod(0o600)  # before it listens: nobody has got in
        except OSError:
            listening.close()
            raise
    finally:
        os.close(folder)
    return listening
