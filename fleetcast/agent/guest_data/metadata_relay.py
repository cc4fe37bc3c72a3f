"""Carries one connection of a guest to its metadata service: python metadata_relay.py SOCKET.

QEMU starts it for each connection that user-mode networking forwards, with the guest's end as its
standard input and output. It must start fast and stay small, so: standard library only, run with
-I -S. When either side has said its last word, the other is told, and what still comes is carried.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
from typing import Final

_CHUNK_BYTES: Final = 65_536
# A guest that falls silent must not keep a process of the host's.
_SILENCE_S: Final = 30.0
_FROM_GUEST: Final = 0
_TO_GUEST: Final = 1


def main(path: str) -> None:
    """Carry until the service has said its last word."""
    # By its name in its folder: a socket's address holds a hundred bytes, and a path more. And
    # without pathlib, which takes longer to load than all the rest.
    folder, name = os.path.split(path)
    os.chdir(folder)
    with socket.socket(socket.AF_UNIX) as service, selectors.DefaultSelector() as either:
        service.connect(name)
        either.register(_FROM_GUEST, selectors.EVENT_READ)
        either.register(service, selectors.EVENT_READ)
        while ready := either.select(_SILENCE_S):
            for key, _ in ready:
                if key.fd == _FROM_GUEST:
                    if said := os.read(_FROM_GUEST, _CHUNK_BYTES):
                        service.sendall(said)
                    else:
                        either.unregister(_FROM_GUEST)
                        service.shutdown(socket.SHUT_WR)
                elif answered := service.recv(_CHUNK_BYTES):
                    _write_all(answered)
                else:
                    return


def _write_all(answered: bytes) -> None:
    while answered:
        answered = answered[os.write(_TO_GUEST, answered) :]


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError:
        # The guest's or the service's end is gone: the connection ends with this process.
        sys.exit(1)
