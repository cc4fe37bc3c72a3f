"""The GPUs of this host, as sysfs shows them, and which of them guests can be given.

A GPU is given to one guest as a whole, by vfio-pci: the driver that the host's administrator has
bound it to, so that no program of the host's has it (`driverctl set-override ADDRESS vfio-pci`). It
can't be given without all else in its IOMMU group, the smallest part of the host that can be kept
apart from the rest. This module only reads: binding a device needs root, and the agent has none.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetcast.agent.capacity.settings import GpuSettings
    from fleetcast.instance_types import InstanceType

_log = logging.getLogger(__name__)

_DEVICES: Final = "sys/bus/pci/devices"
_MANUFACTURERS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_DISPLAY: Final = "0x03"  # the class of everything that draws or computes as if it did
_BRIDGE: Final = "0x06"
_NAMES: Final = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")
_PASSED_BY: Final = "vfio-pci"


class Gpu(NamedTuple):
    """One GPU. address: on PCI. model: as the PCI ID database names it, or as configured.

    problem: why it can't be given to a guest; "": it can.
    """

    address: str
    manufacturer: str
    model: str
    problem: str


class GpuPool(NamedTuple):
    """GPUs that guests can be given, all of one model, by PCI address."""

    manufacturer: str
    model: str
    addresses: tuple[str, ...]

    def serves(self, instance_type: InstanceType) -> bool:
        """Say whether these are what a type's GPUs are. A type that names none takes any."""
        if instance_type.gpu_manufacturer not in (None, self.manufacturer):
            return False
        return instance_type.gpu_name is None or _words(instance_type.gpu_name) <= _words(
            self.model
        )


NO_GPUS: Final = GpuPool("", "", ())


def gpus_for_guests(settings: GpuSettings, root: Path = Path("/")) -> GpuPool:
    """Return the GPUs that guests may have by configuration and can have, and log the others.

    root: where /sys and /usr are.
    """
    if not settings.passthrough:
        return NO_GPUS
    gpus = find_gpus(root, model=settings.model)
    pool = pool_of(gpus)
    for gpu in gpus:
        if gpu.address not in pool.addresses:
            why = gpu.problem or f"it is no {pool.model}, as most are"
            extra = {"gpu": gpu.address, "model": gpu.model, "why": why}
            _log.warning("GPU not given to guests", extra=extra)
    if not gpus:
        _log.warning("no GPU on this host to give to guests")
    return pool


def find_gpus(root: Path = Path("/"), *, model: str | None = None) -> tuple[Gpu, ...]:
    """Return the host's NVIDIA and AMD GPUs, by address. root: where /sys and /usr are.

    model: what they are, where the PCI ID database is absent or doesn't know.
    """
    gpus: list[Gpu] = []
    for device in sorted((root / _DEVICES).glob("*")):
        manufacturer = _MANUFACTURERS.get(_text(device / "vendor"))
        if manufacturer is None or not _text(device / "class").startswith(_DISPLAY):
            continue
        name = model or _name(root, _text(device / "vendor"), _text(device / "device"))
        gpus.append(Gpu(device.name, manufacturer, name, _problem(device)))
    return tuple(gpus)


def pool_of(gpus: Sequence[Gpu]) -> GpuPool:
    """Return what guests can be given: those of the model of which there are most.

    One count is kept for a node, and a type asks for one model; others stay the host's.
    """
    usable = [gpu for gpu in gpus if not gpu.problem]
    if not usable:
        return NO_GPUS
    counts = Counter((gpu.manufacturer, gpu.model) for gpu in usable)
    kind = max(sorted(counts), key=lambda one: counts[one])
    manufacturer, model = kind
    addresses = tuple(gpu.address for gpu in usable if (gpu.manufacturer, gpu.model) == kind)
    return GpuPool(manufacturer, model, addresses)


def _problem(device: Path) -> str:
    driver = _link(device / "driver")
    if driver != _PASSED_BY:
        return (
            f"it is the host's own ({driver or 'no driver'}): to give it to guests, "
            f"driverctl set-override {device.name} {_PASSED_BY}"
        )
    group = device / "iommu_group" / "devices"
    if not group.is_dir():
        return "the host's IOMMU is off: turn it on in the firmware and for the kernel"
    beside = [each for each in sorted(group.iterdir()) if each.name != device.name]
    for other in beside:
        if _text(other / "class").startswith(_BRIDGE) or _link(other / "driver") in (
            "",
            _PASSED_BY,
        ):
            continue
        return (
            f"{other.name} is in its IOMMU group and is the host's own "
            f"({_link(other / 'driver')}): driverctl set-override {other.name} {_PASSED_BY}"
        )
    return ""


def _name(root: Path, vendor: str, device: str) -> str:
    """Look a device up in the PCI ID database; "" if it isn't there."""
    vendor_line, device_line = f"{vendor.removeprefix('0x')}  ", f"\t{device.removeprefix('0x')}  "
    for path in _NAMES:
        of_vendor = False
        for line in _text(root / path).splitlines():
            if not line.startswith(("\t", "#")) and line:
                of_vendor = line.startswith(vendor_line)
            elif of_vendor and line.startswith(device_line):
                return line.removeprefix(device_line).strip()
    return ""


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def _link(path: Path) -> str:
    """Return the name of what a link leads to; "" if there is none."""
    return path.resolve().name if path.is_symlink() else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""
