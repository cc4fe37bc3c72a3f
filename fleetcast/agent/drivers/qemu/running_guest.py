"""A guest whose QEMU is there: followed, asked to end, and ended.

QEMU stays when its guest powers itself off or crashes, so whoever asks it, this agent or a later
one, learns how its guest has ended. An agent that begins or finds a QEMU follows it: on what
QEMU tells, and every few seconds in any case, it looks how the guest is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, Literal

from fleetcast.agent.drivers import BootFailed, GuestEnd
from fleetcast.agent.drivers.qemu.console_file import append_console
from fleetcast.agent.drivers.qemu.monitor import Monitor, MonitorLost
from fleetcast.agent.drivers.qemu.qemu_output import cut_output, last_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder
    from fleetcast.agent.drivers.qemu.qemu_process import QemuProcess

_log = logging.getLogger(__name__)

# How a guest has ended, by QEMU's run state. Source: QEMU QMP reference, RunState.
_ENDS: Final[dict[str, tuple[Literal["powered off", "crashed"], str]]] = {
    "shutdown": ("powered off", "The instance has shut itself down"),
    "guest-panicked": ("crashed", "The instance's operating system has crashed"),
    "internal-error": ("crashed", "The instance's virtual machine has failed"),
}
_WAITS_FOR_DISK: Final = "io-error"
_UNKNOWN: Final = "unknown"
# One that has to wait for the disk, say, can't shut itself down.
_MAY_HEAR: Final = ("running", _UNKNOWN)
_NOT_YET: Final = (None, _UNKNOWN, "prelaunch")

_LOOK_EVERY_S: Final = 5.0
_COME_UP_EVERY_S: Final = 0.02
_COME_UP_SLOWER: Final = 1.2
_COME_UP_AT_LEAST_EVERY_S: Final = 1.0
_PRESS_AGAIN_S: Final = 2.0
_END_SEEN_WITHIN_S: Final = 0.1
_QUIT_WITHIN_S: Final = 20.0
_STILL_THERE_S: Final = 30.0
# A process is gone a little later than its sockets.
_END_SHOWS_WITHIN_S: Final = 0.2


class RunningGuest:
    """One guest and its QEMU. tell: told how the guest has ended, unless we have ended it."""

    def __init__(
        self, folder: GuestFolder, process: QemuProcess, *, tell: Callable[[GuestEnd], None]
    ) -> None:
        self.instance_id = folder.instance_id
        self.process = process
        self._folder = folder
        self._tell = tell
        self._monitor: Monitor | None = None
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()  # a second connection would wait for the first to leave
        self._saving = asyncio.Lock()
        self.run_state: str | None = None
        self._is_ours_to_end = False
        self._is_told = False
        self._went_on_at_s = 0.0
        process.call_when_ended(self._changed.set)
        self._following: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Say whether the guest runs no more, though its QEMU may still be there."""
        return self.process.has_ended or self.run_state in _ENDS

    async def come_up(self, *, within_s: float) -> None:
        """Wait until a QEMU that was just begun runs its guest. Raises BootFailed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        pause_s = _COME_UP_EVERY_S
        while self.run_state in _NOT_YET:
            if await self.process.ended(within_s=pause_s):
                raise BootFailed(f"QEMU has ended: {last_words(self._folder)}")
            if loop.time() > deadline:
                raise BootFailed(f"QEMU doesn't run its guest after {within_s:.0f} s")
            with contextlib.suppress(MonitorLost):
                await self._look()
            pause_s = min(pause_s * _COME_UP_SLOWER, _COME_UP_AT_LEAST_EVERY_S)
        self.follow()

    def follow(self) -> None:
        """Look after it from now on, in a task of its own."""
        if self._following is None:
            self._following = asyncio.create_task(self._follow())

    async def look(self) -> None:
        """Learn how the guest is; what can't be learnt now will be later."""
        try:
            await self._look()
        except MonitorLost as lost:
            await self._leave_monitor()
            if await self.process.ended(within_s=_END_SHOWS_WITHIN_S):
                return
            if self.run_state != _UNKNOWN:
                self._warn("QEMU doesn't answer; its guest is taken to run", lost)
            self.run_state = _UNKNOWN

    async def save_console(self) -> None:
        """Keep what the guest has written since the last time. Raises MonitorLost."""
        monitor = self._monitor
        if monitor is None:
            return
        async with self._saving:
            output = await monitor.take_console()
            try:
                append_console(self._folder.console, output)
            except OSError as problem:
                self._warn("console output lost", problem)

    async def reset(self) -> None:
        """Start the guest anew, if it runs."""
        await self.look()
        if self._monitor is None or self.has_ended:
            return
        try:
            await self._monitor.reset()
            # One that has powered itself off in this moment would stay as it is.
            await self._monitor.go_on()
        except MonitorLost as lost:
            self._warn("not reset", lost)

    async def shut_down(self, *, within_s: float) -> None:
        """Let the guest shut itself down, if it does so in time, and end its QEMU."""
        self._is_ours_to_end = True
        deadline = asyncio.get_running_loop().time() + within_s
        await self.look()
        while not self.has_ended and self.run_state in _MAY_HEAR:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            with contextlib.suppress(MonitorLost):
                # Again and again: a guest that is still booting doesn't hear it.
                if self._monitor is not None:
                    await self._monitor.press_power_button()
            await self._wait_for_end(min(left_s, _PRESS_AGAIN_S))
        await self.end()

    async def end(self) -> None:
        """End its QEMU, by force if need be, and return when the process has gone."""
        self._is_ours_to_end = True
        if self._monitor is not None and not self.process.has_ended:
            with contextlib.suppress(MonitorLost):
                await self.save_console()
                await self._monitor.quit()
            await self.process.ended(within_s=_QUIT_WITHIN_S)
        self.process.kill()
        while not await self.process.ended(within_s=_STILL_THERE_S):
            # What it has is booked as long as it is there.
            self._warn("QEMU can't be killed", "the kernel waits, for a device perhaps")
        await self.leave()

    async def leave(self) -> None:
        """Follow it no longer, whether it goes on or not."""
        if self._following is not None:
            if not self.process.has_ended:  # else it has an end to tell, and then ends itself
                self._following.cancel()
            await asyncio.wait([self._following])
        await self._leave_monitor()
        self.process.close()

    # --- following -------------------------------------------------------------------------

    async def _follow(self) -> None:
        while not self.process.has_ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_EVERY_S)
            self._changed.clear()
            if not self.process.has_ended:
                try:
                    await self.look()
                    cut_output(self._folder)
                except Exception:  # noqa: BLE001 - the boundary of a task: it must go on
                    _log.exception("guest not looked after", extra={"instance": self.instance_id})
        why = f"The instance's virtual machine has ended: {last_words(self._folder)}"
        self._tell_end("crashed", why)

    async def _look(self) -> None:
        async with self._looking:
            if self._monitor is None or not self._monitor.is_connected:
                await self._leave_monitor()
                socket, changed = self._folder.monitor, self._changed.set
                self._monitor = await Monitor.connect(socket, changed=changed)
            before, self.run_state = self.run_state, await self._monitor.run_state()
            await self.save_console()
            if self.run_state == _WAITS_FOR_DISK:
                await self._go_on(is_news=before != self.run_state)
            elif self.run_state in _ENDS:
                self._tell_end(*_ENDS[self.run_state])

    async def _go_on(self, *, is_news: bool) -> None:
        """Let a guest go on for which the host's disk had no room; it waits again if it must."""
        if is_news:
            self._warn("guest waits", "the host's disk is full")
        now_s = asyncio.get_running_loop().time()
        if self._monitor is not None and now_s - self._went_on_at_s >= _LOOK_EVERY_S:
            self._went_on_at_s = now_s
            await self._monitor.go_on()

    async def _wait_for_end(self, within_s: float) -> None:
        deadline = asyncio.get_running_loop().time() + within_s
        while not self.has_ended and asyncio.get_running_loop().time() < deadline:
            if not await self.process.ended(within_s=_END_SEEN_WITHIN_S):
                await self.look()

    def _tell_end(self, how: Literal["powered off", "crashed"], why: str) -> None:
        if not self._is_ours_to_end and not self._is_told:
            self._is_told = True
            self._tell(GuestEnd(self.instance_id, how, why))

    def _warn(self, what: str, why: object) -> None:
        record = self._folder.read_record()
        launch_id = record.guest.launch_id if record else None
        extra = {"instance": self.instance_id, "launch": launch_id, "why": str(why)}
        _log.warning(what, extra=extra)

    async def _leave_monitor(self) -> None:
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            await monitor.close()
