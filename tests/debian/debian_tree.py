"""A Debian with systemd and QEMU in a folder, with fleetcast's wheel installed. Needs root.

What debootstrap and apt have made is kept in build/cache; each test gets a copy of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = "/opt/fleetcast/bin/python"
_CACHE: Final = PROJECT / "build/cache/debian-tree"
_RELEASE: Final = "bookworm"
_PACKAGES: Final = (
    *("systemd-sysv", "libpam-systemd", "dbus", "udev", "polkitd"),
    *("python3", "python3-venv", "qemu-system-x86", "qemu-utils", "linux-image-cloud-amd64"),
)


def make_tree(folder: Path) -> Path:
    """Return a tree below the folder, with the agent in /opt/fleetcast but not installed."""
    assert os.geteuid() == 0, "a Debian tree can only be made by root"
    for program, package in (("debootstrap", "debootstrap"), ("mkfs.ext4", "e2fsprogs")):
        assert shutil.which(program), f"{program} is missing: apt-get install {package}"
    tree = folder / "tree"
    run("cp", "--archive", _base(), tree)
    wheels = tree / "root/wheels"
    # Nothing of pip's configuration here says where a wheel may come from inside.
    run(sys.executable, "-m", "pip", "wheel", "-q", "-w", wheels, f"{PROJECT}[agent]")
    in_tree(tree, "python3", "-m", "venv", "/opt/fleetcast")
    in_tree(
        tree,
        *("/opt/fleetcast/bin/pip", "install", "-q", "--no-index", "--find-links", "/root/wheels"),
        "fleetcast[agent]",
    )
    shutil.rmtree(wheels)
    shutil.copy(Path(sysconfig.get_path("scripts")) / "nats-server", tree / "usr/local/bin")
    return tree


def run(*command: str | Path) -> str:
    """Run a command and return what it prints. Its complaint is in the failure."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    return done.stdout


def in_tree(tree: Path, *command: str | Path) -> str:
    """Run a command with the tree as its root."""
    return run(*chrooted(tree, *command))


def chrooted(tree: Path, *command: str | Path) -> tuple[str | Path, ...]:
    """Return a command that has the tree as its root, and /proc only while it runs."""
    # Make keeps bytecode apart here; in the tree it is to lie where its own Python looks for it.
    enter = f"exec env -u PYTHONPYCACHEPREFIX chroot {tree}"
    mount = f'mount -t proc proc {tree}/proc && {enter} "$@"'
    return ("unshare", "--mount", "sh", "-c", mount, "sh", *command)


def _base() -> Path:
    """Make what all trees begin as, once."""
    made_of = hashlib.sha256(repr((_RELEASE, _PACKAGES)).encode()).hexdigest()[:16]
    base = _CACHE / made_of
    if base.exists():
        return base
    unfinished = base.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    run("debootstrap", "--variant=minbase", _RELEASE, unfinished)
    shutil.copy("/etc/resolv.conf", unfinished / "etc/resolv.conf")
    apt = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q")
    in_tree(unfinished, *apt, "install", "--no-install-recommends", *_PACKAGES)
    in_tree(unfinished, *apt, "clean")
    unfinished.rename(base)
    return base
