"""What guests have taken, measured on a process and on files that are there."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pytest

from fleetcast.agent.drivers.qemu.guest_folder import GuestFolders
from fleetcast.agent.drivers.qemu.guest_use import guest_uses
from tests.agent_parts import instance_id

if TYPE_CHECKING:
    from pathlib import Path

_MIB = 2**20


def test_memory_is_what_its_process_holds_and_disk_what_its_files_fill(tmp_path: Path) -> None:
    folders = GuestFolders(tmp_path / "guests")
    folder = folders.of(instance_id(1))
    folder.make()
    cached = tmp_path / "cached-image"
    cached.write_bytes(bytes(8 * _MIB))
    folder.image.hardlink_to(cached)
    with folder.disk.open("wb") as disk:  # 3 MiB of 1 GiB
        disk.write(os.urandom(3 * _MIB))
        disk.truncate(1_024 * _MIB)
    use = guest_uses(folders, {instance_id(1): os.getpid()})[instance_id(1)]
    assert use.disk_mib == 3
    assert use.memory_mib == pytest.approx(psutil.Process().memory_info().rss // _MIB, abs=4)


def test_a_guest_that_has_just_ended_is_left_out(tmp_path: Path) -> None:
    folders = GuestFolders(tmp_path / "guests")
    folders.of(instance_id(1)).make()
    no_process, no_folder = {instance_id(1): 2**22 + 1}, {instance_id(2): os.getpid()}
    assert guest_uses(folders, no_process | no_folder) == {}


def test_a_guest_counts_though_files_of_its_come_and_go(tmp_path: Path) -> None:
    folders = GuestFolders(tmp_path / "guests")
    folder = folders.of(instance_id(1))
    folder.make()
    looked = threading.Event()

    def come_and_go() -> None:
        while not looked.is_set():
            for number in range(10):
                path = folder.path / f"{number}.new"
                path.touch()
                path.replace(folder.console)

    with ThreadPoolExecutor() as threads:
        writing = threads.submit(come_and_go)
        try:
            seen = [guest_uses(folders, {instance_id(1): os.getpid()}) for _ in range(500)]
        finally:
            looked.set()
        writing.result()
    assert all(seen)
