"""The real guests of a local stack: the image that they boot from, and their end with the stack.

A guest outlives its agent, as it should; nothing of a local stack should outlive that.
"""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Final

import psutil

from fleetcast.errors import FleetcastError
from fleetcast.local.guest_image import build_guest_image

if TYPE_CHECKING:
    from pathlib import Path

IMAGE_ID: Final = "ami-0123456789abcdef0"

_ENDS_WITHIN_S: Final = 10.0
_PACKAGES: Final = {"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}


class QemuMissing(FleetcastError):
    """Real guests are wanted, and this machine has no QEMU. The message says how to get it."""


def check_qemu() -> None:
    """Raise QemuMissing if it isn't installed: agents would say so only after the deployment."""
    if missing := [package for name, package in _PACKAGES.items() if shutil.which(name) is None]:
        raise QemuMissing(
            f"real guests need QEMU: on Debian, as root, apt-get install {' '.join(missing)}"
        )


def write_image_catalogue(path: Path) -> None:
    """Build the small Linux image and write an images.toml that has it as IMAGE_ID.

    Raises GuestImageFailed.
    """
    image = build_guest_image()
    with image.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path.write_text(
        "[[image]]\n"
        f'id = "{IMAGE_ID}"\n'
        f'path = "{image}"\n'
        f'sha256 = "{digest}"\n'
        'format = "raw"\n'
        'architecture = "x86_64"\n'
        'name = "a small Linux for trials"\n',
        encoding="utf-8",
    )


def guest_pids(directory: Path, instance_id: str = "") -> list[int]:
    """Return the pids of the QEMU processes whose files are below `directory`.

    instance_id: only of that instance.
    """
    return [process.pid for process in _guest_processes(directory, instance_id)]


def end_guests(directory: Path) -> None:
    """End all QEMU processes whose files are below `directory`, as a power cut does."""
    processes = _guest_processes(directory)
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=_ENDS_WITHIN_S)


def _guest_processes(directory: Path, instance_id: str = "") -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"].startswith("qemu-system-")
        and any(
            str(directory) in part and instance_id in part for part in process.info["cmdline"] or ()
        )
    ]
