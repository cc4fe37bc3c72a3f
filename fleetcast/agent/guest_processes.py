"""How a guest's process is begun, so that it outlives the agent.

On a node where the agent was installed, each guest is a unit of systemd's own: in a slice of its
own, with limits, under the guests' own sandbox, and no child of the agent's (ADR 0011). Anywhere
else it is a child at the head of a session of its own, which an agent that ends leaves running.
Either way the agent follows it by QMP and by its pid, since it may have been another agent's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.guest_launcher import ORDERS
from fleetcast.messages import INSTANCE_ID_PATTERN

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENT_UNIT: Final = "fleetcast-agent.service"
_INSTANCE_ID: Final = re.compile(INSTANCE_ID_PATTERN)
# QEMU's own threads need a share beside the guest's vCPUs.
_CPUS_BESIDE_VCPUS: Final = 1
_ANSWER_WITHIN_S: Final = 30
# A guest that is emulated takes all the CPU there is, and launches are to be answered at once. Not
# by more: one that gets next to none on a busy host panics, for want of its timer's ticks (seen).
_NICE: Final = "5"
_BEHIND_THE_AGENT: Final = ("nice", "-n", _NICE)


class GuestProcesses(Protocol):
    """Begins the processes of guests."""

    async def begin(
        self,
        instance_id: str,
        command: Sequence[str],
        *,
        output: Path,
        memory_max_mib: int,
        vcpu: int,
    ) -> int:
        """Return its pid when the command has been begun. Its output is appended to that file.

        command: absolute path of the program, and its arguments. memory_max_mib: of the guest and
        what runs it. Raises BootFailed.
        """


def guest_processes() -> GuestProcesses:
    """Return how guests are begun where this process runs."""
    memberships = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return GuestUnits() if f"/{AGENT_UNIT}" in memberships else GuestChildren()


class GuestChildren:
    """Guests as children of the agent."""

    async def begin(
        self,
        instance_id: str,
        command: Sequence[str],
        *,
        output: Path,
        memory_max_mib: int,  # noqa: ARG002 - nobody is there who could set limits
        vcpu: int,  # noqa: ARG002 - the same
    ) -> int:
        """See GuestProcesses."""
        try:
            with output.open("ab") as appended:
                # asyncio's own would kill the guest when the loop that began it ends.
                child = subprocess.Popen(  # noqa: ASYNC220 - it is begun at once, without a shell
                    [*_BEHIND_THE_AGENT, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=appended,
                    stderr=appended,
                    start_new_session=True,
                )
        except OSError as problem:
            raise BootFailed(f"{instance_id} can't be begun: {problem}") from problem
        _put_behind_the_agent(child.pid)
        _reap_when_it_ends(child)
        return child.pid


def _put_behind_the_agent(pid: int) -> None:
    """Let its session give way too: most kernels divide CPU among sessions, then within them."""
    # A kernel that doesn't has no such file, and a child may have ended.
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(_NICE, encoding="ascii")


def _reap_when_it_ends(child: subprocess.Popen[bytes]) -> None:
    """Leave no dead child in the host's process table."""
    loop = asyncio.get_running_loop()
    descriptor = os.pidfd_open(child.pid)

    def reap() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        child.wait()

    loop.add_reader(descriptor, reap)


class GuestUnits:
    """Guests as units, which systemd begins for the agent.

    orders: where the launcher in the unit looks for what to do. systemctl: the program.
    """

    def __init__(self, *, orders: Path = ORDERS, systemctl: str = "systemctl") -> None:
        self._orders = orders
        self._program = systemctl

    async def begin(
        self,
        instance_id: str,
        command: Sequence[str],
        *,
        output: Path,
        memory_max_mib: int,
        vcpu: int,
    ) -> int:
        """See GuestProcesses. A unit that runs is left as it is, and its pid returned."""
        order = {
            "command": list(command),
            "output": str(output),
            "memory_max_mib": memory_max_mib,
            "cpus_max": vcpu + _CPUS_BESIDE_VCPUS,
        }
        unit = guest_unit(instance_id)
        try:
            self._leave_order(instance_id, json.dumps(order))
            await self._systemctl("start", unit)
            pid = int(await self._systemctl("show", "--property=MainPID", "--value", unit))
        except OSError as problem:
            raise BootFailed(f"{instance_id} can't be begun: {problem}") from problem
        if not pid:
            raise BootFailed(f"{instance_id} has ended at once")
        return pid

    def _leave_order(self, instance_id: str, order: str) -> None:
        self._orders.mkdir(mode=0o700, exist_ok=True)
        path = self._orders / f"{instance_id}.json"
        half_written = path.with_suffix(".new")
        half_written.touch(mode=0o600)
        half_written.write_text(order, encoding="utf-8")
        half_written.replace(path)

    async def _systemctl(self, verb: str, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(self._program, "--no-ask-password", verb, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            said, complaint = await asyncio.wait_for(process.communicate(), _ANSWER_WITHIN_S)
        except TimeoutError as problem:
            process.kill()
            await process.wait()
            raise BootFailed(f"systemd has not answered in {_ANSWER_WITHIN_S} s") from problem
        if process.returncode != 0:
            why = complaint.decode(errors="replace").strip()
            raise BootFailed(f"systemd doesn't {verb} {arguments[-1]}: {why}")
        return said.decode()


def guest_unit(instance_id: str) -> str:
    """Return the name of an instance's unit. Raises BootFailed for what is no instance id."""
    if not _INSTANCE_ID.fullmatch(instance_id):
        raise BootFailed(f"{instance_id!r} is no instance id")
    return f"fleetcast-guest@{instance_id}.service"
