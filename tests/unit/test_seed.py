"""The NoCloud seed, read back as a guest does: by ISO 9660 and YAML readers of others."""

from __future__ import annotations

import stat
from io import BytesIO
from typing import TYPE_CHECKING

import pycdlib
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.guest_data.seed import write_seed
from tests.told_instance import INSTANCE_ID, PUBLIC_KEY, told_instance

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.guest_data import InstanceFacts

# As NATS messages can hold them: any text but halves of surrogate pairs.
_TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
_KEY = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guest") / "seed.iso"


def _files(path: Path) -> dict[str, bytes]:
    """Return the files of a seed. Both names that readers look for must lead to the same bytes."""
    disk = pycdlib.PyCdlib()
    disk.open(str(path))
    found = {}
    for name in ("meta-data", "user-data", "network-config"):
        by_rock_ridge, by_joliet = BytesIO(), BytesIO()
        disk.get_file_from_iso_fp(by_rock_ridge, rr_path=f"/{name}")
        disk.get_file_from_iso_fp(by_joliet, joliet_path=f"/{name}")
        assert by_rock_ridge.getvalue() == by_joliet.getvalue()
        found[name] = by_rock_ridge.getvalue()
    disk.close()
    return found


def _written(path: Path, facts: InstanceFacts) -> dict[str, bytes]:
    write_seed(path, facts)
    return _files(path)


def test_a_seed_tells_who_the_instance_is(path: Path) -> None:
    files = _written(path, told_instance())
    assert yaml.safe_load(files["meta-data"]) == {
        "instance-id": INSTANCE_ID,
        "local-hostname": f"{INSTANCE_ID}.eu-west-1.compute.internal",
        "public-keys": [PUBLIC_KEY],
        "region": "eu-west-1",
        "availability-zone": "eu-west-1b",
        "tags": {"Name": "first"},
    }
    assert files["user-data"] == b"#!/bin/sh\necho hello\n"
    card = yaml.safe_load(files["network-config"])["ethernets"]["eth0"]
    assert card["match"] == {"macaddress": "02:00:00:00:00:07"}


def test_a_seed_has_the_label_that_guests_look_for_and_is_its_owners_alone(path: Path) -> None:
    write_seed(path, told_instance())
    with path.open("rb") as disk:
        disk.seek(16 * 2048 + 40)  # the primary volume descriptor's name of the volume
        assert disk.read(32).rstrip() == b"cidata"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("user_data", [b"", b"\x1f\x8b\x00", bytes(range(256)) * 64, b"a\r\n\0'"])
def test_user_data_is_told_byte_for_byte(path: Path, user_data: bytes) -> None:
    assert _written(path, told_instance(user_data=user_data))["user-data"] == user_data


def test_an_instance_without_user_data_has_an_empty_file(path: Path) -> None:
    assert _written(path, told_instance(user_data=None))["user-data"] == b""


@given(tags=st.dictionaries(_KEY, _TEXT, max_size=4))
def test_no_tag_breaks_out_of_the_meta_data(path: Path, tags: dict[str, str]) -> None:
    told = yaml.safe_load(_written(path, told_instance(tags=tags))["meta-data"])
    assert told["tags"] == tags
    assert told["instance-id"] == INSTANCE_ID


@pytest.mark.parametrize(
    "value",
    [
        *('"', "'", "\\", "\n- x: y", "{}", "# x", "%YAML", "\x85", "\u2028", "\ufeff", "\x7f"),
        *("😀", "\x00", "\uffff", "null", "1", "---\n", "a\n\ninstance-id: i-0"),
    ],
)
def test_hostile_text_stays_text(path: Path, value: str) -> None:
    tags = {"first": value, f"key {value}": "second"}
    told = yaml.safe_load(_written(path, told_instance(tags=tags))["meta-data"])
    assert told["tags"] == tags


def test_a_folder_that_cannot_be_written_fails_the_boot(tmp_path: Path) -> None:
    with pytest.raises(BootFailed, match="seed can't be written: No such file or directory"):
        write_seed(tmp_path / "gone" / "seed.iso", told_instance())
