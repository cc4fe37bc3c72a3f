"""Has a guest shut itself down: `python -I -m fleetcast.agent.guest_shutdown ID [PID]`.

systemd runs it when it stops a guest's unit, as it does when the host shuts down: the agent has
ended before that. Without a PID the guest has ended already. When this returns, systemd ends QEMU,
whether the guest was done or not. It imports nothing but the standard library: it runs after each
guest's end.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from pathlib import Path
from typing import Final

_GUESTS: Final = Path("/var/lib/fleetcast/guests")
# The unit's TimeoutStopSec is longer.
_SHUT_DOWN_WITHIN_S: Final = 60.0
# QEMU greets one client at a time: silence means that an agent is at work on this guest.
_GREETS_WITHIN_S: Final = 5.0
# A guest that is still booting doesn't hear it.
_PRESS_EVERY_S: Final = 5.0
_CHUNK_BYTES: Final = 65_536


def main() -> None:
    """Carry it out for the instance named on the command line."""
    if sys.argv[2:] and sys.argv[2]:
        shut_down(_GUESTS / sys.argv[1] / "qmp.sock", within_s=_SHUT_DOWN_WITHIN_S)


def shut_down(monitor: Path, *, within_s: float, press_every_s: float = _PRESS_EVERY_S) -> bool:
    """Press the guest's power button until it has shut down; return whether it has."""
    deadline_s = time.monotonic() + within_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_GREETS_WITHIN_S)
        try:
            connection.connect(str(monitor))
            if not connection.recv(_CHUNK_BYTES):
                return False
            connection.sendall(_command("qmp_capabilities"))
            while (left_s := deadline_s - time.monotonic()) > 0:
                connection.sendall(_command("system_powerdown"))
                connection.settimeout(min(left_s, press_every_s))
                with contextlib.suppress(TimeoutError):
                    return _hears_shutdown(connection)
        except OSError as problem:
            sys.stderr.write(f"the guest can't be asked to shut down: {problem!r}\n")
    return False


def _hears_shutdown(connection: socket.socket) -> bool:
    """Wait for the guest's end; False if QEMU ends first. Raises TimeoutError."""
    unread = b""
    while chunk := connection.recv(_CHUNK_BYTES):
        *lines, unread = (unread + chunk).split(b"\n")
        if any(json.loads(line).get("event") == "SHUTDOWN" for line in lines if line.strip()):
            return True
    return False


def _command(name: str) -> bytes:
    return json.dumps({"execute": name}).encode() + b"\n"


if __name__ == "__main__":
    main()
