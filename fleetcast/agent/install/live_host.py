"""What only a running host has: its systemd, its users and its processes. Tells them what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from fleetcast.agent.guest_processes import AGENT_UNIT
from fleetcast.agent.install.node_files import (
    CONFIG,
    CONFIG_DIR,
    CREDENTIALS,
    RUN_DIR,
    STATE_DIR,
    SYSUSERS,
    TMPFILES,
    USER,
)
from fleetcast.agent.install.service_user import may_run_python
from fleetcast.agent.install.tree import InstallFailed

if TYPE_CHECKING:
    from fleetcast.agent.install.tree import Tree

_GUEST_UNITS: Final = "fleetcast-guest@*.service"
_GUEST_UNIT: Final = re.compile(r"/fleetcast-guest@(i-[0-9a-f]+)\.service")
_POLKIT_DAEMONS: Final = ("/usr/lib/polkit-1/polkitd", "/usr/libexec/polkitd")
# The agent answers what is in hand first, guests are given half a minute.
_WITHIN_S: Final = 180


class GuestProcess(NamedTuple):
    """A process of the agent's user that is not the agent."""

    pid: int
    name: str


class LiveHost:
    """This host, by the programs that systemd and shadow bring. In a rehearsal nothing is run."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def check_systemd(self) -> None:
        """Raise InstallFailed if this host is not run by systemd, or has none of its tools."""
        if not Path("/run/systemd/system").is_dir():
            raise InstallFailed(
                "systemd doesn't run this host: use --root DIR for an image, or start the agent "
                "with your own supervisor: fleetcast-agent run --config agent.toml"
            )
        for program in ("systemctl", "systemd-sysusers", "systemd-tmpfiles", "userdel"):
            if shutil.which(program) is None:
                raise InstallFailed(f"{program} is missing: apt-get install systemd passwd")

    def check_polkit(self) -> None:
        """Raise InstallFailed if nobody here could let the agent start guests."""
        if not has_polkit():
            raise InstallFailed(
                "polkit is missing, without which systemd begins no guests for the agent: "
                "apt-get install polkitd"
            )

    def run(self, *command: str) -> None:
        """Run a command that changes the host. Raises InstallFailed with what it said."""
        self._tree.change("run", " ".join(command))
        if not self._tree.is_rehearsal:
            self._ask(*command)

    def follow(self, *, has_news: bool) -> None:
        """Have systemd make the user and the folders, and read its units if there is news."""
        before = _owners()
        # Neither changes anything where all is as described.
        for command in (("systemd-sysusers", SYSUSERS), ("systemd-tmpfiles", "--create", TMPFILES)):
            if not self._tree.is_rehearsal:
                self._ask(*command)
        if self._tree.is_rehearsal or _owners() != before:
            self._tree.change("make", f"user {USER}, {CONFIG_DIR}, {STATE_DIR}, {RUN_DIR}")
        else:
            self._tree.keep(f"user {USER}, {CONFIG_DIR}, {STATE_DIR}, {RUN_DIR}")
        if not self._tree.is_rehearsal and not may_run_python():
            raise InstallFailed(
                f"user {USER} can't run {sys.executable}: "
                f"chmod -R a+rX {sys.prefix}, and run it again"
            )
        if has_news:
            self.run("systemctl", "daemon-reload")
            if shutil.which("udevadm"):
                self.run("udevadm", "control", "--reload")

    def start(self) -> None:
        """Start the agent and wait until it serves. Raises InstallFailed with its last words."""
        if self.is_active():
            self._tree.keep(f"{AGENT_UNIT} runs")
            return
        try:
            self.run("systemctl", "start", AGENT_UNIT)
        except InstallFailed as problem:
            words = self._ask("journalctl", "--unit", AGENT_UNIT, "--lines=5", "--output=cat")
            raise InstallFailed(
                f"all is installed, but the agent doesn't start; systemd goes on trying. "
                f"See fleetcast-agent doctor --config {CONFIG}. Its last words:\n{words}"
            ) from problem
        if not self._tree.is_rehearsal:
            status = self._ask("systemctl", "show", "--property=StatusText", "--value", AGENT_UNIT)
            self._tree.keep(f"{AGENT_UNIT}: {status.strip()}")

    def is_active(self) -> bool:
        """Return whether the agent's unit runs, or is on its way to."""
        state = self._ask("systemctl", "show", "--property=ActiveState", "--value", AGENT_UNIT)
        return state.strip() in {"active", "activating", "reloading"}

    def guests(self) -> list[GuestProcess]:
        """Return the guests that run: what the agent's user has running beside the agent."""
        main = self._ask("systemctl", "show", "--property=MainPID", "--value", AGENT_UNIT).strip()
        return [
            GuestProcess(one.pid, _instance_of(one.pid) or one.info["name"])
            for one in psutil.process_iter(["name", "username"])
            if one.info["username"] == USER and str(one.pid) != main
        ]

    def end_guests(self) -> None:
        """End every guest, those that are no units too."""
        self.run("systemctl", "stop", _GUEST_UNITS)
        if self._tree.is_rehearsal:
            return
        left = [psutil.Process(one.pid) for one in self.guests() if psutil.pid_exists(one.pid)]
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=_WITHIN_S)

    def _ask(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=_WITHIN_S,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise InstallFailed(f"{' '.join(command)}: {problem}") from problem
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise InstallFailed(f"{' '.join(command)} failed: {said}")
        return done.stdout


def has_polkit() -> bool:
    """Return whether this host has what allows the agent to start guests' units."""
    return any(Path(name).exists() for name in _POLKIT_DAEMONS)


def _owners() -> list[tuple[object, ...]]:
    """Return what tells whether users and folders are as they were."""
    found: list[tuple[object, ...]] = []
    for name in ("/etc/passwd", "/etc/group", CONFIG_DIR, CONFIG, CREDENTIALS, STATE_DIR, RUN_DIR):
        path = Path(name)
        status = path.stat() if path.exists() else None
        content = path.read_bytes() if status and name in {"/etc/passwd", "/etc/group"} else b""
        found.append((status and (status.st_uid, status.st_gid, status.st_mode), content))
    return found


def _instance_of(pid: int) -> str | None:
    """Return the instance in whose unit a process runs."""
    try:
        memberships = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None  # it has ended meanwhile
    found = _GUEST_UNIT.search(memberships)
    return found[1] if found else None
