"""Builds a small disk image of a real Linux guest, for tests and demonstrations.

    .venv/bin/python -m fleetcast.local.guest_image [FOLDER]

Debian's cloud kernel and busybox, started by syslinux: what it does is in guest_root/, which is
laid out as the guest's root. Its console is ttyS0; it reads a NoCloud seed or asks the EC2 metadata
service, runs user data as cloud-init does, and shuts down when its power button is pressed.

Needs the Debian packages busybox-static, syslinux, mtools and dosfstools; no root, no mounting.
The disk: a FAT partition with syslinux, kernel and initramfs, and one that the guest formats and
keeps.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Iterable

_GUEST_ROOT: Final = Path(__file__).with_name("guest_root")
_CACHE: Final = Path(__file__).resolve().parent.parent.parent / "build" / "cache" / "guest-image"
_NEEDS: Final = "on Debian, apt-get install busybox-static dosfstools mtools syslinux"
_FRESH_LISTS: Final = "as root, apt-get update"

_KERNEL_PACKAGE: Final = "linux-image-cloud-amd64"
_BUSYBOX: Final = Path("/usr/bin/busybox")
_BOOT_RECORD: Final = Path("/usr/lib/syslinux/mbr/mbr.bin")
# What the cloud kernel has as modules; what these need is found out.
_MODULES: Final = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio-rng"),
    *("isofs", "evdev", "button", "pvpanic-pci"),
)
_SYSLINUX_CONFIG: Final = """\
DEFAULT guest
LABEL guest
  KERNEL vmlinuz
  INITRD initrd
  APPEND console=ttyS0 quiet
"""

_SECTOR_BYTES: Final = 512
_FIRST_SECTOR: Final = 2048  # where partitions begin by custom
_KEPT_MIB: Final = 8
_FAT_SPARE_BYTES: Final = 2 << 20
_FAT16_LBA: Final = 0x0E
_LINUX: Final = 0x83
_BOOTABLE: Final = 0x80


class GuestImageFailed(FleetcastError):
    """The image can't be built; the message says which command failed, or what is missing."""


def build_guest_image(folder: Path = _CACHE) -> Path:
    """Return a raw disk image, some 30 MB, with BIOS boot; built if the folder has none yet.

    One image per content of guest_root/, this file and busybox. Raises GuestImageFailed.
    """
    image = folder / f"guest-{_recipe()}.img"
    if image.exists():
        return image
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as workplace:
        work = Path(workplace)
        kernel = _unpacked_kernel(work)
        vmlinuz = next((kernel / "boot").glob("vmlinuz-*"))
        initrd = _pack_initramfs(work, kernel)
        partition = _boot_partition(work, vmlinuz, initrd)
        # Renamed into place last: a file of that name is a whole image.
        _join_disk(work / "disk", partition).rename(image)
    return image


def _recipe() -> str:
    """Return a digest of all that the image is made of, but the kernel: that is what apt has."""
    digest = hashlib.sha256()
    try:
        for path in (Path(__file__), _BUSYBOX, *_files_below(_GUEST_ROOT)):
            digest.update(str(path.name).encode() + b"\0" + path.read_bytes())
    except OSError as problem:
        raise GuestImageFailed(
            f"{problem.filename}: {problem.strerror}; try, {_NEEDS}"
        ) from problem
    return digest.hexdigest()[:16]


def _unpacked_kernel(work: Path) -> Path:
    """Return a folder with the files of Debian's cloud kernel package."""
    # A line with its own name, and one with the kernel of the day that it depends on.
    said = _run("apt-cache", "depends", _KERNEL_PACKAGE, folder=work, remedy=_FRESH_LISTS)
    package = said.split()[-1]
    _run("apt-get", "download", package, folder=work, remedy=_FRESH_LISTS)
    unpacked = work / "kernel"
    _run("dpkg", "-x", str(next(work.glob("linux-image-*.deb"))), str(unpacked), folder=work)
    return unpacked


def _pack_initramfs(work: Path, kernel: Path) -> Path:
    root, packed = work / "root", work / "initrd"
    shutil.copytree(_GUEST_ROOT, root)
    (root / "bin").mkdir()
    shutil.copy(_BUSYBOX, root / "bin" / "busybox")
    (root / "modules").mkdir()
    modules = {path.stem: path for path in kernel.rglob("*.ko")}
    order = [modules[name] for name in _in_order(_MODULES, modules)]
    for path in order:
        shutil.copy(path, root / "modules")
    (root / "modules" / "order").write_text("".join(f"{path.name}\n" for path in order))
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    with packed.open("wb") as output:
        # Uncompressed: an emulated processor reads faster than it unpacks.
        _run(str(_BUSYBOX), "cpio", "-o", "-H", "newc", folder=root, given=names, output=output)
    return packed


def _in_order(wanted: Iterable[str], modules: dict[str, Path]) -> list[str]:
    """Return the modules and all they need, each after what it needs."""
    order: list[str] = []

    def add(name: str) -> None:
        if name in order:
            return
        if name not in modules:
            raise GuestImageFailed(f"the kernel package has no module {name}")
        for needed in _needed_by(modules[name]):
            add(needed)
        order.append(name)

    for name in wanted:
        add(name)
    return order


def _needed_by(module: Path) -> list[str]:
    """Read which modules one needs: `depends=a,b` among its strings, each ended by a zero."""
    _, _, rest = module.read_bytes().partition(b"\0depends=")
    return [name for name in rest.partition(b"\0")[0].decode().split(",") if name]


def _boot_partition(work: Path, vmlinuz: Path, initrd: Path) -> Path:
    """Return a FAT file system with syslinux, the kernel and the initramfs."""
    partition, config = work / "partition", work / "syslinux.cfg"
    config.write_text(_SYSLINUX_CONFIG)
    content_bytes = vmlinuz.stat().st_size + initrd.stat().st_size + _FAT_SPARE_BYTES
    with partition.open("wb") as file:
        file.truncate(_whole_mib(content_bytes))
    hidden = str(_FIRST_SECTOR)
    _run("/usr/sbin/mkfs.fat", "-F", "16", "-h", hidden, str(partition), folder=work)
    for source, name in ((vmlinuz, "vmlinuz"), (initrd, "initrd"), (config, config.name)):
        _run("mcopy", "-i", str(partition), str(source), f"::{name}", folder=work)
    _run("syslinux", "--install", str(partition), folder=work)
    return partition


def _join_disk(disk: Path, partition: Path) -> Path:
    """Write boot record, partition table, boot partition and room for what the guest keeps."""
    boot_sectors = partition.stat().st_size // _SECTOR_BYTES
    kept_sectors = (_KEPT_MIB << 20) // _SECTOR_BYTES
    kept_from = _FIRST_SECTOR + boot_sectors
    try:
        code = _BOOT_RECORD.read_bytes()
    except OSError as problem:
        raise GuestImageFailed(f"{_BOOT_RECORD}: {problem.strerror}; try, {_NEEDS}") from problem
    table = (
        _entry(_BOOTABLE, _FAT16_LBA, _FIRST_SECTOR, boot_sectors)
        + _entry(0, _LINUX, kept_from, kept_sectors)
        + bytes(32)
    )
    with disk.open("wb") as file, partition.open("rb") as source:
        file.write(code.ljust(446, b"\0") + table + b"\x55\xaa")
        file.seek(_FIRST_SECTOR * _SECTOR_BYTES)
        shutil.copyfileobj(source, file)
        file.truncate((kept_from + kept_sectors) * _SECTOR_BYTES)
    return disk


def _entry(flag: int, kind: int, first_sector: int, sectors: int) -> bytes:
    """Return a line of the partition table; cylinders and heads say "see the sector numbers"."""
    beyond = b"\xfe\xff\xff"
    return struct.pack("<B3sB3sII", flag, beyond, kind, beyond, first_sector, sectors)


def _whole_mib(size_bytes: int) -> int:
    return -(-size_bytes >> 20) << 20


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _run(
    *command: str,
    folder: Path,
    given: str = "",
    output: BinaryIO | None = None,
    remedy: str = "",
) -> str:
    """Run a command and return what it prints, or let it print to `output`.

    given: its standard input. remedy: what helps if it fails. Raises GuestImageFailed.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            input=given.encode(),
            stdout=output or subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=True,
        )
    except FileNotFoundError as missing:
        raise GuestImageFailed(f"{command[0]} is missing; try, {_NEEDS}") from missing
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.decode(errors="replace").strip()
        hint = f"; try, {remedy}" if remedy else ""
        raise GuestImageFailed(f"{' '.join(command)} failed: {said}{hint}") from failed
    return (done.stdout or b"").decode()


if __name__ == "__main__":
    sys.stdout.write(f"{build_guest_image(*map(Path, sys.argv[1:2]))}\n")
