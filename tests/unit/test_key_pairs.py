"""Key pairs: names become files of one folder, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.drivers import ClientFault
from fleetcast.agent.key_pairs import KeyPairs
from tests.told_instance import PUBLIC_KEY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir()
    (tmp_path / "outside.pub").write_text(PUBLIC_KEY)
    return folder


@pytest.mark.parametrize("name", ["web", "my key", "a.b", "ops@example.com"])
def test_a_key_is_read_from_the_file_of_its_name(folder: Path, name: str) -> None:
    (folder / f"{name}.pub").write_text(f"{PUBLIC_KEY}\n")
    assert KeyPairs(folder).public_key(name) == PUBLIC_KEY


@pytest.mark.parametrize(
    "name",
    [
        *("web", "../outside", "..", ".", "", "a/b", "sub/../../outside", "/etc/passwd", "x\0y"),
        *("outside\n", "ключ", ".hidden", " web", "x" * 252, "x" * 10_000),
    ],
)
def test_an_unknown_or_hostile_name_is_not_found(folder: Path, name: str) -> None:
    (folder / ".hidden.pub").write_text(PUBLIC_KEY)
    for keys in (KeyPairs(folder), KeyPairs(None)):
        with pytest.raises(ClientFault) as fault:
            keys.public_key(name)
        assert fault.value.code == "InvalidKeyPair.NotFound"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n",
        f"{PUBLIC_KEY}\n{PUBLIC_KEY}\n".encode(),
        b"ssh-rsa",
        b"\xff\xfe",
        b'command="sh" ssh-rsa AAAA',
    ],
)
def test_a_file_that_is_no_public_key_is_not_given_to_a_guest(
    folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "web.pub").write_bytes(content)
    with pytest.raises(ClientFault, match="'web' does not exist"):
        KeyPairs(folder).public_key("web")
    assert "public key" in caplog.text  # the operator is told, and not what the file holds
    assert "AAAA" not in caplog.messages[0]
