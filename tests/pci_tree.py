"""A host's PCI devices as sysfs shows them, in a folder: no GPU is needed to test what is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

VGA: Final = "0x030000"
COMPUTE: Final = "0x030200"
AUDIO: Final = "0x040300"
BRIDGE: Final = "0x060400"
NVIDIA: Final = "0x10de"
L4: Final = "0x27b8"
T4: Final = "0x1eb8"
_NAMES: Final = """\
# a comment
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t27b8  Not what is looked for
\t74a1  Aqua Vanjaram [Instinct MI300X]
10de  NVIDIA Corporation
\t1eb8  TU104GL [Tesla T4]
\t\t10de 12a2  Tesla T4
\t27b8  AD104GL [L4]
ffff  Illegal Vendor ID
"""


class PciTree:
    """The devices below `root`/sys, and the names below `root`/usr."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sys = root / "sys"
        names = root / "usr/share/misc/pci.ids"
        names.parent.mkdir(parents=True)
        names.write_text(_NAMES, encoding="utf-8")

    def add(
        self,
        address: str,
        kind: str = COMPUTE,
        *,
        vendor: str = NVIDIA,
        device: str = L4,
        driver: str | None = "vfio-pci",
        group: int | None = None,
    ) -> None:
        """Add a device. driver: bound to. group: of the IOMMU; None: it is off."""
        folder = self._sys / "devices/pci0000:00" / address
        folder.mkdir(parents=True)
        for name, value in (("class", kind), ("vendor", vendor), ("device", device)):
            (folder / name).write_text(f"{value}\n", encoding="utf-8")
        on_bus = self._sys / "bus/pci/devices"
        on_bus.mkdir(parents=True, exist_ok=True)
        (on_bus / address).symlink_to(folder)
        if driver is not None:
            bound_to = self._sys / "bus/pci/drivers" / driver
            bound_to.mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(bound_to)
        if group is not None:
            members = self._sys / f"kernel/iommu_groups/{group}/devices"
            members.mkdir(parents=True, exist_ok=True)
            (members / address).symlink_to(folder)
            (folder / "iommu_group").symlink_to(members.parent)
