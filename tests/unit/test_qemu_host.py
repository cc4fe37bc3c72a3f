"""What a host has to run guests with: told once, and clearly when it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcast.agent.drivers.qemu.acceleration import find_accelerator, runs_in_time
from fleetcast.agent.drivers.qemu.host import find_host
from fleetcast.agent.drivers.qemu.settings import QemuSettings
from fleetcast.configuration import read_struct
from fleetcast.errors import InvalidConfiguration

_EMULATED = QemuSettings(accelerator="tcg")
_QEMU = Path("/usr/bin/qemu-system-x86_64")


@pytest.mark.host_packages
def test_a_guest_of_a_few_instructions_shows_that_an_accelerator_works() -> None:
    assert runs_in_time(_QEMU, "x86_64", "tcg", within_s=30)


def test_a_guest_that_does_not_end_in_time_shows_that_it_does_not() -> None:
    assert not runs_in_time(_QEMU, "x86_64", "tcg", within_s=0.001)


def test_what_a_probe_has_found_holds_until_the_host_or_qemu_is_another(tmp_path: Path) -> None:
    memory, binary = tmp_path / "accelerator.json", tmp_path / "qemu"
    binary.symlink_to(_QEMU)
    found = find_accelerator(binary, "x86_64", memory=memory)
    binary.unlink()
    binary.write_text("no QEMU any more")
    changed_ns = _QEMU.stat().st_mtime_ns
    os.utime(binary, ns=(changed_ns, changed_ns))
    assert find_accelerator(binary, "x86_64", memory=memory) == found
    memory.write_bytes(memory.read_bytes().replace(b'"tcg"', b'"kvm"'))
    assert find_accelerator(binary, "x86_64", memory=memory) == "kvm"
    os.utime(binary)  # another one: it is asked, and isn't one
    assert find_accelerator(binary, "x86_64", memory=memory) == "tcg"
    memory.write_text("not what we write")
    assert find_accelerator(binary, "x86_64", memory=memory) == "tcg"


def test_an_accelerator_is_found_though_the_finding_cannot_be_kept(tmp_path: Path) -> None:
    assert find_accelerator(_QEMU, "x86_64", memory=tmp_path / "none" / "accelerator.json")


def test_a_host_without_qemu_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidConfiguration, match=r"qemu\.binary.*apt-get install qemu-system"):
        find_host(_EMULATED, probe_memory=tmp_path / "memory")


@pytest.mark.parametrize("binary", ["/nowhere/qemu", "qemu-system-none"])
def test_a_configured_qemu_that_cannot_be_run_is_named(tmp_path: Path, binary: str) -> None:
    settings = QemuSettings(accelerator="tcg", binary=binary)
    with pytest.raises(InvalidConfiguration, match=binary):
        find_host(settings, probe_memory=tmp_path / "memory")


def test_a_machine_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"riscv64.*x86_64, aarch64"):
        find_host(_EMULATED, probe_memory=tmp_path / "memory", machine="riscv64")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"accelerator": "hvf"}, "accelerator"),
        ({"shutdown_timeout_s": 0}, "shutdown_timeout_s"),
        ({"bridge": ""}, "bridge"),
        ({"bridge": "br0", "internet": True}, "internet"),
        ({"brigde": "br0"}, "brigde"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(
    values: dict[str, object], key: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=rf"qemu\.{key}"):
        read_struct(values, QemuSettings, key="qemu")
