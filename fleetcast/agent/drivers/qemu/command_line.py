"""How a guest's QEMU is begun: a pure function of the guest, its files and the host.

Never a shell's to read. Files are named in JSON, or where QEMU reads nothing but a name; of what
the instance's owner has given, only its sizes are here.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from fleetcast.agent.drivers.qemu.monitor import CONSOLE_CHARDEV

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder, GuestRecord

Accelerator: TypeAlias = Literal["kvm", "tcg"]
Architecture: TypeAlias = Literal["x86_64", "arm64"]

NETDEV: Final = "net0"
# What QEMU keeps of a guest that is emulated: left alone, it takes up to 1 GiB.
TRANSLATED_MIB: Final = 64
# Any fixed name space: the same instance is the same machine at each start.
_MACHINE_IDS: Final = uuid.UUID("6b3ddc4f-1d51-4be5-9a8c-6e1d2c1c2f10")
_CONSOLE_BYTES: Final = 65_536
# It starts the programs that user-mode networking forwards to, each in a session of its own, and to
# begin one counts as elevating privileges. None is gained all the same: any sandbox implies that.
_SANDBOX: Final = "on,obsolete=deny,elevateprivileges=allow,spawn=allow,resourcecontrol=deny"


class QemuHost(NamedTuple):
    """What the host runs guests with.

    image_tool: qemu-img. uefi_code, uefi_variables: the firmware that UEFI images boot with, and
    what it knows before a guest's first start.
    """

    binary: Path
    image_tool: Path
    architecture: Architecture
    accelerator: Accelerator
    uefi_code: Path
    uefi_variables: Path


def command_line(
    record: GuestRecord,
    folder: GuestFolder,
    host: QemuHost,
    *,
    network: str,
    mac: str,
) -> tuple[str, ...]:
    """Return the program and its arguments.

    network: the value of -netdev, whose id is NETDEV.
    """
    guest = record.guest
    return (
        # A socket's path has to be short, and the state folder's may be long.
        *("/usr/bin/env", f"--chdir={folder.path}"),
        *(str(host.binary), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-name", guest.instance_id),
        *_machine(record, host),
        *("-smp", str(guest.vcpu), "-m", f"{guest.memory_mib}M"),
        *_identity(guest.instance_id),
        # A guest that has powered itself off, or has crashed, can be seen to have: QEMU stays.
        *("-action", "shutdown=pause,panic=pause"),
        *("-pidfile", str(folder.pid)),
        *("-chardev", f"socket,id=qmp,path={folder.monitor.name},server=on,wait=off"),
        *("-mon", "chardev=qmp,mode=control"),
        # Nothing that a guest writes there takes room of the host's disk.
        *("-chardev", f"ringbuf,id={CONSOLE_CHARDEV},size={_CONSOLE_BYTES}"),
        *("-serial", f"chardev:{CONSOLE_CHARDEV}"),
        *_disks(record, folder, host),
        *("-netdev", network),
        *_device("virtio-net-pci", netdev=NETDEV, mac=mac, romfile=""),
        *_device("virtio-rng-pci"),
        *_device("pvpanic-pci"),
        *(part for gpu in guest.gpu_addresses for part in _device("vfio-pci", host=gpu)),
        *("-sandbox", _SANDBOX),
    )


def _machine(record: GuestRecord, host: QemuHost) -> tuple[str, ...]:
    is_arm = host.architecture == "arm64"
    machine = "virt,gic-version=max" if is_arm else "q35,usb=off,vmport=off"
    if record.firmware == "uefi":
        machine += ",pflash0=uefi-code,pflash1=uefi-vars"
    is_native = host.accelerator == "kvm"
    # A guest that sleeps would run and not be seen to.
    awake = () if is_arm else _globals(("ICH9-LPC.disable_s3", "1"), ("ICH9-LPC.disable_s4", "1"))
    return (
        *("-machine", machine),
        *("-accel", "kvm" if is_native else f"tcg,tb-size={TRANSLATED_MIB}"),
        *("-cpu", "host" if is_native else "max"),
        *awake,
    )


def _globals(*values: tuple[str, str]) -> tuple[str, ...]:
    return tuple(part for name, value in values for part in ("-global", f"{name}={value}"))


def _identity(instance_id: str) -> tuple[str, ...]:
    """Return what stock images know an EC2 instance by: a machine id that begins with ec2."""
    machine_id = f"ec2{str(uuid.uuid5(_MACHINE_IDS, instance_id))[3:]}"
    return ("-uuid", machine_id, "-smbios", f"type=1,manufacturer=fleetcast,serial={machine_id}")


def _disks(record: GuestRecord, folder: GuestFolder, host: QemuHost) -> Iterator[str]:
    if record.firmware == "uefi":
        yield from _blockdev("uefi-code", "raw", host.uefi_code, read_only=True)
        yield from _blockdev("uefi-vars", "raw", folder.uefi_variables)
    # What the image itself says of others that it needs isn't followed.
    image: dict[str, object] = {
        "driver": record.image_format,
        "read-only": True,
        "file": {"driver": "file", "filename": str(folder.image)},
        **({"backing": None} if record.image_format == "qcow2" else {}),
    }
    yield from _blockdev("root", "qcow2", folder.disk, backing=image)
    # The host's disk is full: the guest waits, and goes on when there is room.
    yield from _device("virtio-blk-pci", drive="root", bootindex=1, werror="enospc")
    yield from _blockdev("seed", "raw", folder.seed, read_only=True)
    yield from _device("virtio-blk-pci", drive="seed")


def _blockdev(
    name: str,
    driver: str,
    path: Path,
    *,
    read_only: bool = False,
    backing: dict[str, object] | None = None,
) -> Sequence[str]:
    file = {"driver": "file", "filename": str(path)}
    node: dict[str, object] = {"node-name": name, "driver": driver, "read-only": read_only}
    if backing is not None:
        # Given back to the host what the guest frees; never two who write.
        node |= {"backing": backing, "discard": "unmap"}
        file |= {"locking": "on", "discard": "unmap"}
    return ("-blockdev", json.dumps(node | {"file": file}))


def _device(driver: str, **properties: str | int) -> Sequence[str]:
    return ("-device", json.dumps({"driver": driver, **properties}))
