"""Which process is a guest's QEMU, told by what the kernel knows: no number can be mistaken.

QEMU locks its pid file for its life, and the kernel names the lock's holder; it locks the guest's
disk too. So a second QEMU can't start beside it, whoever starts it, and an agent that has just
started finds the one that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# struct ucred: pid, uid, gid.
_PEER: Final = struct.Struct("3i")
# struct flock: type, whence, start, length, pid.
_FLOCK: Final = "hhqqi0q"


class _Lock(NamedTuple):
    """What stands against a lock of the whole file. pid: 0 or less: not known."""

    is_free: bool
    pid: int


class QemuProcess:
    """A process that is held by a descriptor of its own: it is this one as long as it is open."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pidfd, self._has_ended)

    @classmethod
    def of_pid(cls, pid: int) -> QemuProcess | None:
        """Return the process of that number; None if there is none any more."""
        try:
            return cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None

    @classmethod
    def of_pid_file(cls, pid_file: Path) -> QemuProcess | None:
        """Return the process that has locked the pid file; None if none has."""
        while (pid := _lock_of(pid_file, fcntl.F_GETLK).pid) > 0:
            process = cls.of_pid(pid)
            # Still the holder: then what has been opened is no later process of its number.
            if process is not None and _lock_of(pid_file, fcntl.F_GETLK).pid == pid:
                return process
            if process is not None:
                process.close()
        return None

    @classmethod
    def of_monitor(cls, path: Path) -> QemuProcess | None:
        """Return the process that listens at a monitor's socket; None if none does.

        For one whose pid file somebody has removed.
        """
        try:
            folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.settimeout(0)  # a QEMU that is stopped would be waited for
            try:
                asking.connect(f"/proc/self/fd/{folder}/{path.name}")
                peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            except OSError:
                return None
            finally:
                os.close(folder)
            return cls.of_pid(_PEER.unpack(peer)[0])

    @property
    def has_ended(self) -> bool:
        """Say whether it has ended."""
        return self._ended.done()

    async def ended(self, *, within_s: float | None = None) -> bool:
        """Wait until it has ended, and say whether it has."""
        await asyncio.wait([self._ended], timeout=within_s)
        return self._ended.done()

    def call_when_ended(self, callback: Callable[[], None]) -> None:
        """Call back when it ends, or soon if it has ended."""
        self._ended.add_done_callback(lambda _: callback())

    def kill(self) -> None:
        """End it at once, if it hasn't ended."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it, whether it goes on or not. Nothing else may be asked then."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if not self._ended.done():
            self._ended.set_result(None)


def is_free(path: Path) -> bool:
    """Say whether no QEMU has locked a pid file or a disk."""
    return _lock_of(path, fcntl.F_OFD_GETLK).is_free


def _lock_of(path: Path, kind: int) -> _Lock:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _Lock(is_free=True, pid=0)
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        lock_type, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, kind, asked))
    finally:
        os.close(file)
    is_free = lock_type == fcntl.F_UNLCK
    return _Lock(is_free, 0 if is_free else pid)
