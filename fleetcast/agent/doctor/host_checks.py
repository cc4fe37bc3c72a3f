"""What the host has: disk, state folder, clock, QEMU and KVM, a service manager for guests."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.doctor.finding import fail, ok, warn
from fleetcast.agent.drivers.qemu.acceleration import runs_in_time
from fleetcast.agent.drivers.qemu.host import find_host
from fleetcast.agent.install.live_host import has_polkit
from fleetcast.agent.install.service_user import agents_user, may_read, may_run_python, may_use
from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetcast.agent.doctor.finding import Finding
    from fleetcast.agent.drivers.qemu.command_line import QemuHost
    from fleetcast.agent.drivers.qemu.settings import QemuSettings

_KVM: Final = Path("/dev/kvm")
_GIB: Final = 1024**3
_LITTLE_DISK_GIB: Final = 10
_NO_DISK_GIB: Final = 1
# What the driver asks of QEMU came with it: -device in JSON, -action, pvpanic-pci.
_OLDEST_QEMU: Final = (6, 2)
_PROBE_WITHIN_S: Final = 1.0
_ANSWER_WITHIN_S: Final = 10
# adjtimex(2): what it returns for a clock that nothing keeps right, and as much room as it writes.
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 256


def check_user(files: Sequence[Path]) -> Finding:
    """Try whether the agent's user can run the agent, and read its files."""
    check, user = "user", agents_user().pw_name
    if not may_run_python():
        return fail(
            check,
            f"user {user} can't run {sys.executable}",
            f"chmod -R a+rX {Path(sys.prefix)}, and keep it out of /root and /home",
        )
    if unread := [str(one) for one in files if one.exists() and not may_read(one)]:
        return fail(
            check,
            f"user {user} can't read {', '.join(unread)}",
            f"chgrp {user} {' '.join(unread)}; chmod 640 {' '.join(unread)}",
        )
    return ok(check, f"user {user} can run the agent and read its files")


def check_state_dir(state_dir: Path) -> Finding:
    """Look at the folder of the journal and the guests."""
    check = "state folder"
    try:
        status = state_dir.stat()
    except FileNotFoundError:
        return warn(check, f"{state_dir} is not there yet", "the agent makes it when it starts")
    except OSError as problem:
        return fail(
            check,
            f"{state_dir} can't be looked at: {problem.strerror}",
            "run the doctor as root, or as the agent's user",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        return fail(
            check, f"{state_dir} is open to others: it holds user data", f"chmod 700 {state_dir}"
        )
    user = agents_user()
    if status.st_uid != user.pw_uid:
        owner = _name_of(status.st_uid)
        return fail(
            check,
            f"{state_dir} is {owner}'s, and the agent runs as {user.pw_name}",
            f"chown -R {user.pw_name}: {state_dir}",
        )
    return ok(check, f"{state_dir} is {user.pw_name}'s alone")


def check_disk(state_dir: Path) -> Finding:
    """Look at the room for guests' disks and the journal."""
    there = next(one for one in (state_dir, *state_dir.parents) if one.exists())
    free_gib = shutil.disk_usage(there).free / _GIB
    found = f"{free_gib:.1f} GiB free below {state_dir}"
    if free_gib < _NO_DISK_GIB:
        return fail("disk", found, "free some: without room the agent takes no launches")
    if free_gib < _LITTLE_DISK_GIB:
        return warn("disk", found, f"guests' disks grow: give them {_LITTLE_DISK_GIB} GiB or more")
    return ok("disk", found)


def check_clock_is_kept() -> Finding:
    """Ask the kernel whether something keeps its clock right."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) == _TIME_ERROR:
        return warn(
            "clock kept",
            "the kernel says that nothing keeps its clock right",
            "apt-get install systemd-timesyncd (or chrony), then: timedatectl set-ntp true",
        )
    return ok("clock kept", "the kernel says that its clock is synchronized")


# --- what runs guests ----------------------------------------------------------------------


def check_qemu(settings: QemuSettings) -> list[Finding]:
    """Look for QEMU, its version, and whether KVM runs guests."""
    try:
        # Whether KVM runs guests is tried below, as the agent's user.
        chosen = msgspec.structs.replace(settings, accelerator="tcg")
        host = find_host(chosen, probe_memory=Path(os.devnull))
    except InvalidConfiguration as problem:
        return [fail("QEMU", f"{problem.key} {problem.problem}", f"expected: {problem.expected}")]
    found = [_check_version(host)]
    if settings.accelerator == "tcg":
        return [*found, ok("KVM", "not wanted: qemu.accelerator is tcg")]
    kvm = _check_kvm(host)
    if settings.accelerator == "kvm" and kvm.state != "ok":
        why = kvm.found.partition(":")[0]
        kvm = fail("KVM", f"{why}: no guest boots", 'accelerator = "auto" in [qemu] of agent.toml')
    return [*found, kvm]


def _check_version(host: QemuHost) -> Finding:
    said = subprocess.run(
        (host.binary, "--version"),
        capture_output=True,
        text=True,
        check=False,
        timeout=_ANSWER_WITHIN_S,
    ).stdout
    version = re.search(r"version (\d+)\.(\d+)", said)
    oldest = ".".join(map(str, _OLDEST_QEMU))
    if version is None:
        return fail("QEMU", f"{host.binary} tells no version", "name a QEMU in qemu.binary")
    found = f"{host.binary} {version[1]}.{version[2]}, {host.image_tool}"
    if (int(version[1]), int(version[2])) < _OLDEST_QEMU:
        return fail("QEMU", found, f"install {oldest} or newer")
    return ok("QEMU", found)


def _check_kvm(host: QemuHost) -> Finding:
    if not _KVM.exists():
        return warn(
            "KVM",
            "there is no /dev/kvm: guests are emulated, many times slower",
            "switch virtualization on in the firmware, or nested virtualization for this VM; "
            "then: modprobe kvm_intel (or kvm_amd)",
        )
    user = agents_user().pw_name
    if not may_use(_KVM):
        return fail(
            "KVM",
            f"user {user} may not open /dev/kvm: guests would be emulated",
            f"usermod --append --groups kvm {user}; systemctl restart fleetcast-agent",
        )
    if not runs_in_time(host.binary, host.architecture, "kvm", within_s=_PROBE_WITHIN_S):
        return warn(
            "KVM",
            f"a guest of a few instructions has not ended under KVM in {_PROBE_WITHIN_S} s: "
            "guests are emulated",
            "often nested virtualization that is emulated itself: use another kind of host",
        )
    return ok("KVM", f"user {user} may use /dev/kvm, and a guest has run by it")


def check_guest_units() -> Finding:
    """Look for what begins guests apart from the agent."""
    check = "guests' units"
    if not Path("/run/systemd/system").is_dir():
        return warn(
            check,
            "systemd doesn't run this host: guests run on without limits of their own",
            "nothing, or run the node with systemd and: fleetcast-agent install",
        )
    if not Path("/etc/systemd/system/fleetcast-guest@.service").exists():
        return warn(
            check,
            "the agent is not installed as a service: guests run on without limits of their own",
            "fleetcast-agent install",
        )
    if not has_polkit():
        return fail(check, "polkit is missing: systemd begins no guests", "apt-get install polkitd")
    return ok(check, "systemd begins each guest in fleetcast-guests.slice")


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
