"""What the agent tells the service manager that started it, by systemd's notify protocol.

Source: sd_notify(3). Without such a manager nothing is said, and nothing is different.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)


class ServiceManager:
    """The manager that listens on a datagram socket; None: nobody does."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> ServiceManager:
        """Return the manager that NOTIFY_SOCKET names, or one that hears nothing."""
        return cls(environment.get("NOTIFY_SOCKET") or None)

    @property
    def listens(self) -> bool:
        """Whether there is one."""
        return self._address is not None

    def ready(self, status: str) -> None:
        """Say that the service serves. status: for people, in `systemctl status`."""
        self._say(f"READY=1\nSTATUS={status}")

    def alive(self, status: str) -> None:
        """Feed its watchdog."""
        self._say(f"WATCHDOG=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Say that the service leaves in order."""
        self._say("STOPPING=1\nSTATUS=leaving; guests run on")

    def _say(self, message: str) -> None:
        if self._address is None:
            return
        # A name that begins with @ is in the kernel's table, not in a folder.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
            ) as speaking:
                speaking.sendto(message.encode(), address)
        except OSError as problem:
            # It will restart the agent if it hears too little: nothing to mend from here.
            _log.warning("the service manager can't be told", extra={"why": str(problem)})
