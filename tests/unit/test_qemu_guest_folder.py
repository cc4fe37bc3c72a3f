"""A guest's folder: its record, the end of its console, and what its QEMU has said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fleetcast.agent.drivers import CONSOLE_BYTES
from fleetcast.agent.drivers.qemu.console_file import append_console, read_console
from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder, GuestFolders, GuestRecord
from fleetcast.agent.drivers.qemu.qemu_output import cut_output, last_words
from tests.qemu_node import small_guest

if TYPE_CHECKING:
    from pathlib import Path

_RECORD = GuestRecord(
    guest=small_guest(1, user_data="a secret", tags={"a": "b"}),
    image_format="raw",
    firmware="bios",
)


@pytest.fixture
def folder(tmp_path: Path) -> GuestFolder:
    folder = GuestFolders(tmp_path / "guests").of(_RECORD.guest.instance_id)
    folder.make()
    return folder


@pytest.mark.parametrize(
    "hostile", ["..", "i-../x", "/etc", "", "i-", "i-0123456/", "i-01234567\n"]
)
def test_what_is_no_instance_id_names_no_folder(tmp_path: Path, hostile: str) -> None:
    with pytest.raises(ValueError, match="no instance id"):
        GuestFolders(tmp_path).of(hostile)


def test_a_record_is_read_as_it_was_written_and_by_nobody_else(folder: GuestFolder) -> None:
    assert folder.read_record() is None
    folder.write_record(_RECORD)
    assert folder.read_record() == _RECORD
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder.path, *folder.path.iterdir()))


def test_a_record_that_cannot_be_read_is_none(folder: GuestFolder) -> None:
    folder.write_record(_RECORD)
    (folder.path / "guest.json").write_bytes(b'{"guest": {')
    assert folder.read_record() is None


def test_the_record_of_another_guest_is_none(folder: GuestFolder) -> None:
    folder.write_record(msgspec.structs.replace(_RECORD, guest=small_guest(2)))
    assert folder.read_record() is None


def test_what_else_lies_among_the_folders_is_no_guest(tmp_path: Path) -> None:
    folders = GuestFolders(tmp_path)
    folders.of("i-01234567").make()
    (tmp_path / "i-notes").mkdir()
    (tmp_path / "i-89abcdef").write_text("a file")
    assert [folder.instance_id for folder in folders] == ["i-01234567"]


def test_a_removed_folder_may_be_removed_again(folder: GuestFolder) -> None:
    folder.write_record(_RECORD)
    folder.image.symlink_to("/nowhere")
    for _ in range(2):
        folder.remove()
        assert not folder.path.exists()


def test_a_folder_is_removed_with_what_others_have_put_there(folder: GuestFolder) -> None:
    folder.write_record(_RECORD)
    (folder.path / "notes" / "old").mkdir(parents=True)
    folder.remove()
    assert not folder.path.exists()


def test_what_a_link_in_place_of_a_folder_leads_to_is_no_guests(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    kept = tmp_path / "elsewhere" / "kept"
    kept.touch()
    folders = GuestFolders(tmp_path / "guests")
    folder = folders.of("i-01234567")
    folder.path.symlink_to(tmp_path / "elsewhere")
    assert list(folders) == []
    with pytest.raises(NotADirectoryError):
        folder.make()
    folder.remove()
    assert not folder.path.is_symlink()
    assert kept.exists()


def test_the_end_of_a_console_is_kept_in_a_file_that_stays_small(folder: GuestFolder) -> None:
    assert read_console(folder.console) is None
    written = b""
    for number in range(60):
        chunk = f"line {number}\n".encode() * 1_000
        append_console(folder.console, chunk)
        written += chunk
        assert folder.console.stat().st_size <= 5 * CONSOLE_BYTES
    console = read_console(folder.console)
    assert console is not None
    assert console.output == written[-CONSOLE_BYTES:]


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("", "it says nothing"),
        ("a warning\nqemu-system-x86_64: -m 9T: no memory\n\n", "-m 9T: no memory"),
        (
            'qemu-system-x86_64: -blockdev {"file": {"filename": "disk.qcow2"}}: No qcow2 format',
            "No qcow2 format",
        ),
        ("nice: qemu-system-x86_64: No such file", "nice: qemu-system-x86_64: No such file"),
        ("bell \x07 and \x1b[31mred", "bell   and  [31mred"),
        ("x" * 5_000, "x" * 300),
    ],
)
def test_the_last_words_of_a_qemu_are_a_short_clean_line(
    folder: GuestFolder, printed: str, words: str
) -> None:
    folder.output.write_text(printed)
    assert last_words(folder) == words


def test_last_words_do_not_tell_where_things_are_on_the_host(folder: GuestFolder) -> None:
    folder.output.write_text(f"qemu-system-x86_64: Could not open '{folder.disk}': Denied")
    assert last_words(folder) == "Could not open 'disk.qcow2': Denied"


def test_a_qemu_that_never_ceases_to_complain_fills_no_disk(folder: GuestFolder) -> None:
    cut_output(folder)  # it has said nothing yet
    folder.output.write_bytes(b"no\n" * 2**19)
    cut_output(folder)
    assert folder.output.stat().st_size == 0
