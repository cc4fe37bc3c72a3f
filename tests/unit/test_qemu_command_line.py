"""What QEMU is begun with: the guest's sizes and files, and nothing that its owner has written."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.drivers.qemu.command_line import QemuHost, command_line
from fleetcast.agent.drivers.qemu.guest_folder import Firmware, GuestFolder, GuestRecord
from tests.qemu_node import small_guest

if TYPE_CHECKING:
    from fleetcast.agent.drivers import Guest

_HOST: Final = QemuHost(
    binary=Path("/usr/bin/qemu-system-x86_64"),
    image_tool=Path("/usr/bin/qemu-img"),
    architecture="x86_64",
    accelerator="tcg",
    uefi_code=Path("/usr/share/code.fd"),
    uefi_variables=Path("/usr/share/vars.fd"),
)
_FOLDER: Final = GuestFolder(Path("/state/guests/i-00000000000000001"))
_hostile = st.text(min_size=1).filter(lambda text: len(text) > 3)  # a word no argument has anyway


def _command(
    guest: Guest,
    *,
    host: QemuHost = _HOST,
    folder: GuestFolder = _FOLDER,
    firmware: Firmware = "bios",
) -> tuple[str, ...]:
    return command_line(
        GuestRecord(guest=guest, image_format="qcow2", firmware=firmware),
        folder,
        host,
        network="user,id=net0",
        mac="02:00:00:00:00:01",
    )


def _values(command: tuple[str, ...], option: str) -> list[Any]:
    """Return what stands after an option, each time; JSON as what it means."""
    found = [value for name, value in pairwise(command) if name == option]
    return [json.loads(value) if value.startswith("{") else value for value in found]


@given(
    user_data=_hostile,
    key_name=_hostile,
    image_id=_hostile,
    tags=st.dictionaries(_hostile, _hostile),
    instance_type=_hostile,
)
def test_nothing_that_an_owner_has_written_reaches_the_command_line(
    user_data: str, key_name: str, image_id: str, tags: dict[str, str], instance_type: str
) -> None:
    hostile = small_guest(
        1,
        user_data_base64=user_data,
        key_name=key_name,
        image_id=image_id,
        tags=tags,
        instance_type=instance_type,
        account_id=user_data,
        launch_id=key_name,
    )
    assert _command(hostile) == _command(small_guest(1))


@given(
    name=st.text(
        st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1
    ).filter(lambda name: name not in {".", ".."})
)
def test_files_are_those_of_the_guest_whatever_the_state_folder_is_called(name: str) -> None:
    folder = GuestFolder(Path("/") / name / "i-00000000000000001")
    command = _command(small_guest(1), folder=folder)
    files = [block["file"]["filename"] for block in _values(command, "-blockdev")]
    assert files == [str(folder.disk), str(folder.seed)]
    (root, _) = _values(command, "-blockdev")
    assert root["backing"]["file"]["filename"] == str(folder.image)
    assert _values(command, "-pidfile") == [str(folder.pid)]
    assert command[1] == f"--chdir={folder.path}"
    assert len(command) == len(_command(small_guest(1)))


def test_an_image_brings_no_other_files_with_it() -> None:
    (root, _) = _values(_command(small_guest(1)), "-blockdev")
    assert root["backing"]["backing"] is None
    assert root["backing"]["read-only"] is True
    assert root["file"]["locking"] == "on"


def test_a_guest_has_the_sizes_that_it_was_launched_with() -> None:
    command = _command(small_guest(1, vcpu=4, memory_mib=8192))
    assert _values(command, "-smp") == ["4"]
    assert _values(command, "-m") == ["8192M"]


def test_an_emulated_guest_takes_no_gigabyte_for_what_it_translates() -> None:
    assert _values(_command(small_guest(1)), "-accel") == ["tcg,tb-size=64"]
    native = _command(small_guest(1), host=_HOST._replace(accelerator="kvm"))
    assert _values(native, "-accel") == ["kvm"]
    assert _values(native, "-cpu") == ["host"]


def test_a_guest_is_the_same_machine_at_each_start_and_one_that_stock_images_take_for_ec2() -> None:
    (machine_id,) = _values(_command(small_guest(1)), "-uuid")
    assert machine_id.startswith("ec2")
    assert _values(_command(small_guest(1, attempt=2)), "-uuid") == [machine_id]
    assert _values(_command(small_guest(2)), "-uuid") != [machine_id]
    (smbios,) = _values(_command(small_guest(1)), "-smbios")
    assert f"serial={machine_id}" in smbios


def test_a_uefi_image_boots_with_firmware_that_remembers_in_the_guests_folder() -> None:
    command = _command(small_guest(1), firmware="uefi")
    files = {block["node-name"]: block for block in _values(command, "-blockdev")}
    assert files["uefi-code"]["file"]["filename"] == str(_HOST.uefi_code)
    assert files["uefi-code"]["read-only"] is True
    assert files["uefi-vars"]["file"]["filename"] == str(_FOLDER.uefi_variables)
    assert files["uefi-vars"]["read-only"] is False
    (machine,) = _values(command, "-machine")
    assert machine.endswith("pflash0=uefi-code,pflash1=uefi-vars")


def test_gpus_that_a_guest_was_given_are_its_own_devices() -> None:
    guest = small_guest(1, gpus=2, gpu_addresses=("0000:01:00.0", "0000:02:00.0"))
    devices = _values(_command(guest), "-device")
    hosts = [one["host"] for one in devices if one["driver"] == "vfio-pci"]
    assert hosts == ["0000:01:00.0", "0000:02:00.0"]


def test_a_guests_qemu_is_confined() -> None:
    (sandbox,) = _values(_command(small_guest(1)), "-sandbox")
    assert sandbox.startswith("on,obsolete=deny,")


def test_an_arm_guest_is_a_machine_of_its_kind() -> None:
    host = _HOST._replace(binary=Path("/usr/bin/qemu-system-aarch64"), architecture="arm64")
    command = _command(small_guest(1), host=host, firmware="uefi")
    (machine,) = _values(command, "-machine")
    assert machine.startswith("virt,")
    assert not any("ICH9" in part for part in command)
