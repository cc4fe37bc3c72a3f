"""The SSH public keys that a node knows: KeyName "web" is the file web.pub in its folder."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from fleetcast.agent.drivers import ClientFault

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger(__name__)

# Printable ASCII without a slash, and no leading dot: a name of a file in the folder, whatever it
# is. As long as EC2 allows, less the ending. Source: EC2 API reference, CreateKeyPair.
_NAME: Final = re.compile(r"[!-\-0-~][ -.0-~]{0,250}")
_PUBLIC_KEY: Final = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( [^\r\n]*)?")
_MAX_KEY_BYTES: Final = 16_384


class KeyPairs:
    """The keys of a folder, read when they are asked for. None: the node knows none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def public_key(self, name: str) -> str:
        """Return the key as a line of authorized_keys.

        Raises ClientFault, InvalidKeyPair.NotFound, if the folder has none that can be used.
        """
        line = None
        if self._folder is not None and _NAME.fullmatch(name):
            line = _read(self._folder / f"{name}.pub")
        if line is None:
            raise ClientFault("InvalidKeyPair.NotFound", f"The key pair {name!r} does not exist")
        return line


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            line = file.read(_MAX_KEY_BYTES).decode().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        _log.warning("a public key can't be read", extra={"path": str(path), "why": str(problem)})
        return None
    if not _PUBLIC_KEY.fullmatch(line):
        right = "one line: ssh-ed25519 AAAA… name"
        _log.warning("a file is no public key", extra={"path": str(path), "expected": right})
        return None
    return line
