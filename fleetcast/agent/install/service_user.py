"""Whom the agent runs as, and what that user may do: tried, since modes don't tell all."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from fleetcast.agent.install.node_files import USER

if TYPE_CHECKING:
    from pathlib import Path

_WITHIN_S: Final = 10
_OPEN_IT: Final = "import os, sys; os.close(os.open(sys.argv[1], int(sys.argv[2])))"


def agents_user() -> pwd.struct_passwd:
    """Return whom the agent runs as: the service's user if root asks, else who asks."""
    if os.geteuid() == 0:
        try:
            return pwd.getpwnam(USER)
        except KeyError:
            pass
    return pwd.getpwuid(os.geteuid())


def may_read(path: Path) -> bool:
    """Say whether the agent's user can open a file for reading."""
    return _python_ends_well("-c", _OPEN_IT, str(path), str(os.O_RDONLY))


def may_use(device: Path) -> bool:
    """Say whether the agent's user can open a device for reading and writing."""
    return _python_ends_well("-c", _OPEN_IT, str(device), str(os.O_RDWR))


def may_run_python() -> bool:
    """Say whether the agent's user can run this interpreter."""
    return _python_ends_well("-c", "")


def _python_ends_well(*arguments: str) -> bool:
    user = agents_user()
    is_root = os.geteuid() == 0
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-S", *arguments),
            capture_output=True,
            check=False,
            timeout=_WITHIN_S,
            cwd="/",
            user=user.pw_uid if is_root else None,
            group=user.pw_gid if is_root else None,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid) if is_root else None,
        )
    except OSError:  # it may not even be executed
        return False
    return done.returncode == 0
