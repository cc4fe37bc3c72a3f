"""Talks with a guest's QEMU over its QMP socket. Every question has a deadline."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from qemu.qmp import EventListener, Message, QMPClient, QMPError, Runstate

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What it logs as errors is told by what we raise.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)

CONSOLE_CHARDEV: Final = "console"
_ANSWER_WITHIN_S: Final = 5.0
# From one look at the guest to the next. A guest that is at peace causes a few, and one that means
# harm 70,000 a second, which nobody could read beside his work.
_MAX_EVENTS: Final = 500


class MonitorLost(FleetcastError):
    """QEMU doesn't answer, or not as it should; it may well go on running its guest."""


class Monitor:
    """A connection to one QEMU, which breaks off when its guest causes too many events."""

    def __init__(self, client: QMPClient, changes: _Changes) -> None:
        self._client = client
        self._changes = changes

    @classmethod
    async def connect(
        cls, socket: Path, *, changed: Callable[[], None], within_s: float = _ANSWER_WITHIN_S
    ) -> Monitor:
        """Connect; one at a time is served, others wait.

        changed: called when the guest's run state may have changed. Raises MonitorLost.
        """
        client = QMPClient()
        # It would keep every event for ever, and a guest can make as many as it likes.
        client.events.event_filter = lambda _: False
        changes = _Changes(changed)
        client.register_listener(changes)
        try:
            folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                os.stat(socket.name, dir_fd=folder)  # the client takes long to say that it's absent
                # By way of it, since the kernel takes only short paths for sockets.
                address = f"/proc/self/fd/{folder}/{socket.name}"
                await asyncio.wait_for(client.connect(address), within_s)
            finally:
                os.close(folder)
        except (QMPError, OSError, TimeoutError) as problem:
            raise MonitorLost(f"no monitor: {problem!r}") from problem
        return cls(client, changes)

    @property
    def is_connected(self) -> bool:
        """Say whether QEMU can still be asked."""
        return self._client.runstate is Runstate.RUNNING

    async def run_state(self) -> str:
        """Return QEMU's run state: running, paused, shutdown, guest-panicked or another."""
        self._changes.seen_n = 0
        return str((await self._execute("query-status"))["status"])

    async def press_power_button(self) -> None:
        """Ask the guest to shut itself down."""
        await self._execute("system_powerdown")

    async def reset(self) -> None:
        """Start the guest anew, as its reset button does."""
        await self._execute("system_reset")

    async def go_on(self) -> None:
        """Let a paused guest run."""
        await self._execute("cont")

    async def quit(self) -> None:
        """Let QEMU end."""
        await self._execute("quit")

    async def take_console(self) -> bytes:
        """Return what the guest has written since the last time, as far as QEMU has kept it."""
        size = {"device": CONSOLE_CHARDEV, "size": 65_536, "format": "base64"}
        return base64.b64decode(await self._execute("ringbuf-read", size))

    async def close(self) -> None:
        """Leave; QEMU goes on, and serves the next who comes."""
        try:
            await asyncio.wait_for(self._client.disconnect(), _ANSWER_WITHIN_S)
        except (QMPError, OSError, EOFError, TimeoutError):
            return  # it had gone already

    async def _execute(self, command: str, arguments: dict[str, object] | None = None) -> Any:  # noqa: ANN401 - QEMU's answer
        try:
            asked = self._client.execute(command, arguments)
            return await asyncio.wait_for(asked, _ANSWER_WITHIN_S)
        except (QMPError, OSError, TimeoutError) as problem:
            raise MonitorLost(f"{command}: {problem!r}") from problem


class _Changes(EventListener):
    """Passes on that something has happened, and keeps nothing. seen_n: events of any kind."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__(("SHUTDOWN", "GUEST_PANICKED", "STOP", "RESUME"))
        self._changed = changed
        self.seen_n = 0

    async def put(self, event: Message) -> None:
        self.seen_n += 1
        if self.seen_n > _MAX_EVENTS:
            # The client breaks off on it. QEMU keeps nothing for who isn't there.
            raise QMPError("the guest causes too many events")
        if self.accept(event):
            self._changed()
