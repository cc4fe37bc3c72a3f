"""A guest of the small Linux image under QEMU, and what it says on its console."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from fleetcast.agent.guest_data.user_network import user_network
from fleetcast.local.guest_image import build_guest_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fleetcast.agent.guest_data import InstanceFacts

_WITHIN_S: Final = 90
_MEMORY_MIB: Final = 192


class BootedGuest:
    """A guest that runs. lines: its console so far."""

    def __init__(self, console: asyncio.StreamReader) -> None:
        self._console = console
        self.lines: list[str] = []

    async def says(self, words: str) -> None:
        """Read its console until a line holds the words. Fails with what it said if it ends."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                async for line in self._console:
                    self.lines.append(line.decode(errors="replace").rstrip())
                    if words in self.lines[-1]:
                        return
        except TimeoutError:
            pass
        raise AssertionError(f"the guest never said {words!r}:\n" + "\n".join(self.lines))

    def between(self, first: str, last: str) -> list[str]:
        """Return the lines between two others."""
        return self.lines[self.lines.index(first) + 1 : self.lines.index(last)]


@asynccontextmanager
async def booted_guest(
    facts: InstanceFacts, *, metadata: Path, seed: Path | None
) -> AsyncIterator[BootedGuest]:
    """Boot a new guest for the length of a `with` block.

    metadata: the socket of its metadata service. seed: a disk it finds, if any.
    """
    image = await asyncio.to_thread(build_guest_image)
    network = user_network(facts, metadata, netdev_id="net0", internet=False)
    disks = [f"file={image},if=virtio,format=raw,snapshot=on"]
    if seed:
        disks.append(f"file={seed},if=virtio,format=raw,readonly=on")
    qemu = await asyncio.create_subprocess_exec(
        *("qemu-system-x86_64", "-accel", "tcg", "-m", str(_MEMORY_MIB), "-nodefaults"),
        *("-display", "none", "-serial", "stdio", "-no-reboot"),
        *(part for disk in disks for part in ("-drive", disk)),
        *("-netdev", network, "-device", f"virtio-net-pci,netdev=net0,mac={facts.mac}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert qemu.stdout
    try:
        yield BootedGuest(qemu.stdout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            qemu.kill()
        await qemu.wait()
