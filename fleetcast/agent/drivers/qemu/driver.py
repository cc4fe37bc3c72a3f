"""Boots, stops and forgets guests: the order of things, in which a crash at any point is harmless.

What there is says what was done: a disk, that the guest has been made; a process that holds the
guest's pid file, that it runs. Nothing else is remembered, so an agent that was killed between any
two steps, and the next one, go on from what they find. Two QEMUs never share a disk: the second
finds the pid file locked, or the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.drivers.qemu.command_line import TRANSLATED_MIB, QemuHost, command_line
from fleetcast.agent.drivers.qemu.console_file import read_console
from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder, GuestFolders, GuestRecord
from fleetcast.agent.drivers.qemu.guest_making import make_ready
from fleetcast.agent.drivers.qemu.guest_use import guest_uses
from fleetcast.agent.drivers.qemu.monitor import MonitorLost
from fleetcast.agent.drivers.qemu.qemu_output import last_words
from fleetcast.agent.drivers.qemu.qemu_process import QemuProcess, is_free
from fleetcast.agent.drivers.qemu.running_guest import RunningGuest
from fleetcast.agent.drivers.qemu.whole_steps import to_its_end

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fleetcast.agent.capacity.gpu_assignments import GpuAssignments
    from fleetcast.agent.drivers import Addresses, ConsoleOutput, Guest, GuestEnd, GuestUse
    from fleetcast.agent.drivers.qemu.command_line import Accelerator
    from fleetcast.agent.drivers.qemu.guest_network import GuestNetwork
    from fleetcast.agent.guest_processes import GuestProcesses
    from fleetcast.agent.images import Images
    from fleetcast.instance_types import InstanceType
    from fleetcast.messages import LaunchRequest

_log = logging.getLogger(__name__)

# A guest whose memory is pinned for its GPUs takes a while, and one with a lot of it even longer.
_COME_UP_WITHIN_S: Final = 300.0
_DISK_FREE_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.05
# Who asks for a console waits for a second. A QEMU that doesn't answer leaves what was before.
_CONSOLE_WITHIN_S: Final = 0.5
# An instance that is terminated may say its last words; nobody waits for more.
_LAST_WORDS_S: Final = 10.0

# What QEMU takes beside its guest's memory, rounded up from what bench-agent measures.
_QEMU_MIB: Final = 96
_MIB_PER_GUEST_GIB: Final = 4
# Between what is booked and where the kernel would kill it: a guest that asks for its metadata many
# times at once has a program started for each.
_SLACK_MIB: Final = 256


class QemuDriver:
    """Keeps guests in `root`. shutdown_timeout_s: what a guest that is stopped may take."""

    def __init__(
        self,
        root: Path,
        *,
        host: QemuHost,
        images: Images,
        network: GuestNetwork,
        processes: GuestProcesses,
        gpus: GpuAssignments,
        shutdown_timeout_s: float,
    ) -> None:
        self._folders = GuestFolders(root)
        self._host = host
        self._images = images
        self._network = network
        self._processes = processes
        self._gpus = gpus
        self._shutdown_timeout_s = shutdown_timeout_s
        self._running: dict[str, RunningGuest] = {}
        self._ends: asyncio.Queue[GuestEnd] = asyncio.Queue()
        self._upkeep: asyncio.Task[None] | None = None

    @property
    def accelerator(self) -> Accelerator:
        """What guests are run by."""
        return self._host.accelerator

    # --- before a launch -------------------------------------------------------------------

    def check(self, request: LaunchRequest, instance_type: InstanceType) -> None:
        """Refuse an image or a key pair that this node doesn't know."""
        self._images.check(request, instance_type)
        self._network.check(request.key_name)

    def lacks(self) -> str | None:
        """Say that no image is known, if so."""
        return self._images.lacks()

    def addresses(self, instance_id: str) -> Addresses:
        """Return where that guest is, or will be."""
        return self._network.addresses(instance_id)

    def overhead_mib(self, memory_mib: int) -> int:
        """Return what its QEMU takes at most: its own, and its tables of the guest's memory."""
        translated_mib = TRANSLATED_MIB if self._host.accelerator == "tcg" else 0
        return _QEMU_MIB + translated_mib + _MIB_PER_GUEST_GIB * memory_mib // 1024

    # --- starting --------------------------------------------------------------------------

    async def boot(self, guest: Guest) -> None:
        """Start the guest on the disk it has, or on a new one."""
        running = await self._find(guest.instance_id)
        if running is not None:
            await running.look()
            if not running.has_ended and await self._goes_on(running):
                await self._repair(guest)
                return
            await self._end(running)
        folder = self._folders.of(guest.instance_id)
        is_new = not folder.is_used
        try:
            addresses = self._gpus.assign(guest.instance_id, guest.gpus)
            guest = msgspec.structs.replace(guest, gpu_addresses=addresses)
            record = await make_ready(guest, folder, images=self._images, host=self._host)
            await self._start(record, folder)
        except BootFailed:
            if is_new:
                await self.destroy(guest.instance_id)
            raise
        except OSError as problem:
            if is_new:
                await self.destroy(guest.instance_id)
            raise BootFailed(f"its files can't be written: {problem.strerror}") from problem

    async def _goes_on(self, running: RunningGuest) -> bool:
        """Wait until a QEMU that was found runs its guest. Return False if it ends instead."""
        try:
            await running.come_up(within_s=_COME_UP_WITHIN_S)
        except BootFailed:
            if not running.has_ended:
                raise
            return False
        return True

    async def _repair(self, guest: Guest) -> None:
        """Give a guest that runs its record again, if that is damaged: it was not taken over."""
        folder = self._folders.of(guest.instance_id)
        if folder.read_record() is None:
            with contextlib.suppress(BootFailed, OSError):  # it runs on without
                await make_ready(guest, folder, images=self._images, host=self._host)
            await self._network.resume(guest, folder)

    async def _start(self, record: GuestRecord, folder: GuestFolder) -> None:
        running = None
        try:
            running = await to_its_end(self._begin(record, folder))
            await running.come_up(within_s=_COME_UP_WITHIN_S)
        except BootFailed:
            if running is not None:
                await self._end(running)
            # One that an agent before this one had just begun may be there by now.
            earlier = await self._find(folder.instance_id)
            if earlier is None:
                raise
            await earlier.come_up(within_s=_COME_UP_WITHIN_S)
            await self._network.resume(record.guest, folder)

    async def _begin(self, record: GuestRecord, folder: GuestFolder) -> RunningGuest:
        guest = record.guest
        command = command_line(
            record,
            folder,
            self._host,
            network=await self._network.prepare(guest, folder),
            mac=self._network.addresses(guest.instance_id).mac,
        )
        await self._wait_for_disk(folder)
        for left in (folder.output, folder.monitor):  # by the QEMU before
            left.unlink(missing_ok=True)
        pid = await self._processes.begin(
            guest.instance_id,
            command,
            output=folder.output,
            memory_max_mib=guest.memory_mib + self.overhead_mib(guest.memory_mib) + _SLACK_MIB,
            vcpu=guest.vcpu,
        )
        found = self._running.get(guest.instance_id)
        if found is not None and found.process.pid == pid:
            return found  # by who has asked for its console meanwhile
        process = QemuProcess.of_pid(pid)
        if process is None:
            raise BootFailed(f"QEMU has ended: {last_words(folder)}")
        return self._follow(folder, process)

    async def _wait_for_disk(self, folder: GuestFolder) -> None:
        """Wait for a QEMU that is about to end, until it has given up all that it has locked."""
        deadline = asyncio.get_running_loop().time() + _DISK_FREE_WITHIN_S
        while not (is_free(folder.pid) and is_free(folder.disk)):
            if asyncio.get_running_loop().time() > deadline:
                raise BootFailed("another QEMU has its disk")
            await asyncio.sleep(_POLL_S)

    # --- ending ----------------------------------------------------------------------------

    async def stop(self, instance_id: str) -> None:
        """Let the guest shut itself down, in time, and keep its disk."""
        running = await self._find(instance_id)
        if running is not None:
            await running.shut_down(within_s=self._shutdown_timeout_s)
        await self._forget(instance_id)

    async def reboot(self, instance_id: str) -> None:
        """Press its reset button."""
        running = await self._find(instance_id)
        if running is not None:
            await running.reset()

    async def destroy(self, instance_id: str) -> None:
        """End the guest, and remove its folder."""
        running = await self._find(instance_id)
        if running is not None:
            await running.shut_down(within_s=min(self._shutdown_timeout_s, _LAST_WORDS_S))
        folder = self._folders.of(instance_id)
        await to_its_end(asyncio.to_thread(folder.disk.unlink, missing_ok=True))
        # One that was just being started has its pid file by now, or fails for want of a disk.
        late = await self._find(instance_id)
        if late is not None:
            await late.end()
        await self._forget(instance_id)
        await to_its_end(asyncio.to_thread(folder.remove))

    async def _end(self, running: RunningGuest) -> None:
        await running.end()
        await self._forget(running.instance_id)

    async def _forget(self, instance_id: str) -> None:
        self._gpus.give_back(instance_id)
        self._running.pop(instance_id, None)
        await self._network.forget(instance_id)

    # --- what there is ---------------------------------------------------------------------

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the end of its console, of now if its QEMU answers."""
        running = await self._find(instance_id)
        if running is not None:
            # Not cut off: what QEMU has given out is nowhere else.
            saving = asyncio.create_task(self._save_console(running))
            await asyncio.wait([saving], timeout=_CONSOLE_WITHIN_S)
        return read_console(self._folders.of(instance_id).console)

    async def _save_console(self, running: RunningGuest) -> None:
        try:
            await running.save_console()
        except MonitorLost as lost:
            extra = {"instance": running.instance_id, "why": str(lost)}
            _log.info("console of before", extra=extra)

    async def next_end(self) -> GuestEnd:
        """Wait for the next guest that ends without being told to."""
        return await self._ends.get()

    async def alive(self) -> Mapping[str, Guest]:
        """Take over all guests whose QEMU is there, and return them."""
        if self._upkeep is None:
            self._upkeep = asyncio.create_task(self._images.keep_current())
        found = await asyncio.gather(
            *(self._take_over_if_it_can(folder) for folder in self._folders)
        )
        return {guest.instance_id: guest for guest in found if guest is not None}

    async def in_use(self) -> Mapping[str, GuestUse]:
        """Return what they have taken, as the kernel counts it."""
        running = self._running.items()
        pids = {one: each.process.pid for one, each in running if not each.process.has_ended}
        return await asyncio.to_thread(guest_uses, self._folders, pids)

    async def leave(self) -> None:
        """Let go of all guests; they run on, and another driver may take them over."""
        if self._upkeep is not None:
            self._upkeep.cancel()
        running, self._running = self._running, {}
        await asyncio.gather(*(one.leave() for one in running.values()))
        await self._network.close()

    async def _take_over_if_it_can(self, folder: GuestFolder) -> Guest | None:
        try:
            return await self._take_over(folder)
        except OSError as problem:  # of one guest's files: the others must not wait for it
            extra = {"instance": folder.instance_id, "why": str(problem)}
            _log.error("guest not taken over", extra=extra)
            return None

    async def _take_over(self, folder: GuestFolder) -> Guest | None:
        running = await self._find(folder.instance_id)
        if running is None:
            return None
        record = folder.read_record()
        if record is None:
            _log.error("guest without a record left alone", extra={"instance": folder.instance_id})
            return None
        self._gpus.adopt(record.guest)
        await running.look()
        await self._network.resume(record.guest, folder)
        return record.guest

    async def _find(self, instance_id: str) -> RunningGuest | None:
        """Return the guest if its QEMU is there, whoever has started it."""
        while (running := self._running.get(instance_id)) is not None:
            if not running.process.has_ended:
                return running
            await running.leave()
            if self._running.get(instance_id) is running:  # nobody else has found another meanwhile
                del self._running[instance_id]
        folder = self._folders.of(instance_id)
        process = QemuProcess.of_pid_file(folder.pid)
        if process is None and not is_free(folder.disk):
            process = QemuProcess.of_monitor(folder.monitor)
        if process is None:
            return None
        running = self._follow(folder, process)
        running.follow()
        return running

    def _follow(self, folder: GuestFolder, process: QemuProcess) -> RunningGuest:
        running = RunningGuest(folder, process, tell=self._ends.put_nowait)
        self._running[folder.instance_id] = running
        return running
