"""A node with systemd, in a virtual machine: what only a real service manager can show."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import pytest

from fleetcast.local.guest_image import build_guest_image
from tests.debian import node_story
from tests.debian.debian_tree import PYTHON, make_tree, run

if TYPE_CHECKING:
    from pathlib import Path

_GUEST_IMAGE = "/srv/guest.img"
_STORY_UNIT = f"""
[Unit]
After=multi-user.target

[Service]
Type=oneshot
ExecStart={PYTHON} -I /root/node_story.py
ExecStopPost=/usr/bin/journalctl --boot --lines=60 --unit=fleetcast-agent --output=cat
ExecStopPost=/usr/bin/systemctl poweroff
StandardOutput=file:/dev/ttyS0
StandardError=inherit
TimeoutStartSec=20min

[Install]
WantedBy=multi-user.target
"""
_BOOT = "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0"


def _prepare(tree: Path) -> None:
    """Put the story into the tree, to be told when it boots, and an image for a guest."""
    shutil.copy(node_story.__file__, tree / "root/node_story.py")
    image = build_guest_image()
    shutil.copy(image, tree / _GUEST_IMAGE.lstrip("/"))
    (tree / "root/images.toml").write_text(
        f'[[image]]\nid = "ami-0123456789abcdef0"\npath = "{_GUEST_IMAGE}"\n'
        f'sha256 = "{hashlib.sha256(image.read_bytes()).hexdigest()}"\n'
        'format = "raw"\narchitecture = "x86_64"\nfirmware = "bios"\n',
        encoding="utf-8",
    )
    units = tree / "etc/systemd/system"
    (units / "story.service").write_text(_STORY_UNIT, encoding="utf-8")
    (units / "multi-user.target.wants/story.service").symlink_to("../story.service")
    # It would take the console away from the story.
    (units / "serial-getty@.service").symlink_to("/dev/null")


@pytest.mark.timeout(1_500)  # an emulated node, and an emulated guest on it
def test_the_agent_serves_a_node_of_systemds_from_installing_to_uninstalling(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: shutil.rmtree(tmp_path))  # it is as large as a Debian
    tree = make_tree(tmp_path)
    _prepare(tree)
    disk = tmp_path / "node.img"
    run("mkfs.ext4", "-q", "-d", tree, disk, "40G")  # most of it is never written
    (kernel,), (initrd,) = (
        list((tree / "boot").glob(f"{one}-*")) for one in ("vmlinuz", "initrd.img")
    )
    console = run(
        *("timeout", "1200", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-smp", "2"),
        *("-m", "3072", "-nographic", "-no-reboot", "-nic", "none", "-append", _BOOT),
        *("-kernel", kernel, "-initrd", initrd),
        *("-drive", f"file={disk},if=virtio,format=raw,cache=unsafe"),
    )
    assert node_story.ENDED_WELL in console, console[-8_000:]
