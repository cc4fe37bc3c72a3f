"""What this host runs guests with."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetcast.agent.drivers.qemu.acceleration import find_accelerator
from fleetcast.agent.drivers.qemu.command_line import QemuHost
from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from fleetcast.agent.drivers.qemu.command_line import Architecture
    from fleetcast.agent.drivers.qemu.settings import QemuSettings


class _Defaults(NamedTuple):
    """Of one architecture. package: Debian's with the binary."""

    architecture: Architecture
    binary: str
    package: str
    uefi_code: str
    uefi_variables: str


# By what the kernel calls the machine.
_DEFAULTS: Final = {
    "x86_64": _Defaults(
        "x86_64",
        "qemu-system-x86_64",
        "qemu-system-x86",
        "/usr/share/OVMF/OVMF_CODE_4M.fd",
        "/usr/share/OVMF/OVMF_VARS_4M.fd",
    ),
    "aarch64": _Defaults(
        "arm64",
        "qemu-system-aarch64",
        "qemu-system-arm",
        "/usr/share/AAVMF/AAVMF_CODE.fd",
        "/usr/share/AAVMF/AAVMF_VARS.fd",
    ),
}


def find_host(
    settings: QemuSettings, *, probe_memory: Path, machine: str | None = None
) -> QemuHost:
    """Return what there is, as configured or as found.

    probe_memory: a file that keeps whether KVM runs guests. machine: None: this one.
    Raises InvalidConfiguration for what is not there.
    """
    machine = machine or platform.machine()
    defaults = _DEFAULTS.get(machine)
    if defaults is None:
        raise InvalidConfiguration(
            "driver",
            f"is qemu, and this machine is {machine}",
            expected=f"one of {', '.join(_DEFAULTS)}",
        )
    install = f"apt-get install {defaults.package} qemu-utils"
    binary = shutil.which(settings.binary or defaults.binary)
    if binary is None:
        raise InvalidConfiguration(
            "qemu.binary",
            f"{settings.binary or defaults.binary} is not there, or can't be run",
            expected=f"an installed QEMU: {install}",
        )
    image_tool = shutil.which("qemu-img")
    if image_tool is None:
        raise InvalidConfiguration(
            "driver", "is qemu, and qemu-img is not there", expected=f"it installed: {install}"
        )
    path = Path(binary).absolute()
    return QemuHost(
        binary=path,
        image_tool=Path(image_tool).absolute(),
        architecture=defaults.architecture,
        accelerator=(
            find_accelerator(path, defaults.architecture, memory=probe_memory)
            if settings.accelerator == "auto"
            else settings.accelerator
        ),
        uefi_code=Path(settings.uefi_code or defaults.uefi_code),
        uefi_variables=Path(settings.uefi_variables or defaults.uefi_variables),
    )
