"""Child processes that never outlive this one.

Each runs in a process group of its own (a terminal's Ctrl-C doesn't reach it) with its output in
a log file. Leaving the `with` block stops all; should this process die before it can, a watchdog
process kills them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from fleetcast.errors import FleetcastError
from fleetcast.local.conditions import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

_WATCHDOG: Final = Path(__file__).with_name("watchdog.py")
_STOP_DEADLINE_S: Final = 10.0
_LOG_TAIL_LINES: Final = 20


class ProcessFailed(FleetcastError):
    """A process ended early, failed or never became ready; the message has its log's end."""


class Processes:
    """The child processes of one `with` block. Safe to use from many threads."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WATCHDOG)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.ask_to_stop()  # all at once, so that they end side by side
        for child in reversed(self._children):
            child.stop()
        if self._watchdog:
            self._watchdog.communicate()

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Child:
        """Start a process, and don't wait for it.

        name: what messages call it. log: where its output goes, made anew. environment: all of
        it, directory: where it works (default: as this process). Raises FileNotFoundError if
        there is no such program.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._tell_watchdog(f"+{process.pid}\n")
        child = Child(self, name, process, log)
        with self._lock:
            self._children.append(child)
        return child

    def forget(self, group: int) -> None:
        """Guard a group no longer, as it has ended: its number may become another's."""
        self._tell_watchdog(f"-{group}\n")

    def _tell_watchdog(self, line: str) -> None:
        if self._watchdog is None or self._watchdog.stdin is None:
            raise RuntimeError("Processes is used outside its `with` block")
        with self._lock:
            self._watchdog.stdin.write(line.encode())
            self._watchdog.stdin.flush()


class Child:
    """A process that was started. log: the file with its output."""

    def __init__(
        self, owner: Processes, name: str, process: subprocess.Popen[bytes], log: Path
    ) -> None:
        self.name = name
        self.log = log
        self._owner = owner
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it hasn't ended."""
        return self._process.poll() is None

    def wait_until(self, ready: Callable[[], object], *, within_s: float) -> None:
        """Wait until a condition of the caller's is true.

        Raises ProcessFailed if the process ends, or isn't ready in time.
        """
        came = wait_until(lambda: not self.running or ready(), within_s)
        if not self.running:
            raise self._ended()
        if not came:
            raise ProcessFailed(
                f"{self.name} was not ready within {within_s:g} s:\n{self._log_tail()}"
            )

    def finish(self) -> None:
        """Wait until it has done its work. Raises ProcessFailed if it says that it failed."""
        if self._process.wait() != 0:
            raise self._ended()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process alone, and don't wait; it stops its own children."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it in its own way, or by force after 10 s, and with it what it left behind."""
        self.ask_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_DEADLINE_S)
        self.kill()

    def kill(self) -> None:
        """End it and its whole group as a crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._owner.forget(self.pid)

    def _ended(self) -> ProcessFailed:
        return ProcessFailed(
            f"{self.name} ended with exit code {self._process.returncode}:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])
        return f"{shown or '  (it said nothing)'}\n  All of it: {self.log}"
