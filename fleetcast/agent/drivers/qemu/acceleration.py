"""Whether this host's KVM really runs guests: told by a guest, and remembered until it reboots.

`/dev/kvm` can be there, open and make machines, and still run them too slowly to boot. So a guest
of a few instructions has to end in time; where it doesn't, guests are emulated (TCG).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers.qemu.command_line import Accelerator, Architecture

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

_KVM: Final = Path("/dev/kvm")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PROBE_WITHIN_S: Final = 1.0

# mov dx, 0x501; mov al, 0x10; out dx, al; hlt; jmp $-1: QEMU exits with 0x10 * 2 + 1.
_X86_CODE: Final = bytes.fromhex("ba0105 b010 ee f4 ebfd")
_X86_SECTOR: Final = _X86_CODE.ljust(510, b"\0") + b"\x55\xaa"
_X86_EXIT: Final = 0x21
# movz w0, #8; movk w0, #0x8400, lsl #16; hvc #0; b . - PSCI's SYSTEM_OFF: QEMU exits with 0.
_ARM_CODE: Final = bytes.fromhex("00018052 0080b072 020000d4 00000014")
_ARM_EXIT: Final = 0


class _Finding(msgspec.Struct, frozen=True):
    """What a probe has found. boot_id: of the host's kernel."""

    boot_id: str
    binary: str
    binary_changed_ns: int
    accelerator: Accelerator


def find_accelerator(binary: Path, architecture: Architecture, *, memory: Path) -> Accelerator:
    """Return what guests are to be run by; takes a second at most, and no time the next time.

    memory: a file that keeps the answer.
    """
    boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    about = (boot_id, str(binary), binary.stat().st_mtime_ns)
    known = _remembered(memory)
    if known and about == (known.boot_id, known.binary, known.binary_changed_ns):
        return known.accelerator
    accelerator, why = _probe(binary, architecture)
    _log.info("accelerator found", extra={"accelerator": accelerator, "why": why})
    with contextlib.suppress(OSError):  # a full disk, say: then it is asked again the next time
        memory.write_bytes(msgspec.json.encode(_Finding(*about, accelerator)))
    return accelerator


def runs_in_time(
    binary: Path, architecture: Architecture, accelerator: Accelerator, *, within_s: float
) -> bool:
    """Say whether a guest of a few instructions ends in time."""
    with tempfile.TemporaryDirectory(prefix="fleetcast-probe-") as folder:
        code = Path(folder) / "code"
        code.write_bytes(_X86_SECTOR if architecture == "x86_64" else _ARM_CODE)
        command = _probe_command(binary, architecture, accelerator, code)
        try:
            done = subprocess.run(command, timeout=within_s, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == (_X86_EXIT if architecture == "x86_64" else _ARM_EXIT)


def _probe(binary: Path, architecture: Architecture) -> tuple[Accelerator, str]:
    if not _KVM.exists():
        return "tcg", "the host has no /dev/kvm"
    if not os.access(_KVM, os.R_OK | os.W_OK):
        return "tcg", "the agent's user may not open /dev/kvm"
    if not runs_in_time(binary, architecture, "kvm", within_s=_PROBE_WITHIN_S):
        return (
            "tcg",
            f"a guest of a few instructions has not ended under KVM in {_PROBE_WITHIN_S} s",
        )
    return "kvm", "a guest of a few instructions has ended under KVM"


def _probe_command(
    binary: Path, architecture: Architecture, accelerator: Accelerator, code: Path
) -> Sequence[str]:
    cpu = "host" if accelerator == "kvm" else "max"
    command = [str(binary), "-nodefaults", "-no-user-config", "-display", "none"]
    command += ["-accel", accelerator, "-cpu", cpu, "-m", "64M"]
    if architecture == "arm64":
        return [*command, "-machine", "virt,gic-version=max", "-kernel", str(code)]
    file = {"driver": "file", "filename": str(code)}
    disk = json.dumps({"driver": "raw", "node-name": "code", "file": file})
    command += ["-machine", "pc", "-blockdev", disk, "-device", "ide-hd,drive=code"]
    return [*command, "-device", "isa-debug-exit"]


def _remembered(memory: Path) -> _Finding | None:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=_Finding)
    except (OSError, msgspec.MsgspecError):
        return None
