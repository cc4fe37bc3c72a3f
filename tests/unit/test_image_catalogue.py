"""images.toml: every mistake is told with its line and key, and no secret is repeated."""

from __future__ import annotations

from typing import Final

import pytest

from fleetcast.agent.images.catalogue import read_catalogue
from fleetcast.errors import InvalidConfiguration
from tests.image_server import ID, an_image, catalogue_text

_GOOD: Final = catalogue_text(
    an_image(b"a", url="https://images.example.com/a", name="Debian"),
    an_image(b"b", id="ami-12345678", path="/srv/b", architecture="arm64", firmware="uefi"),
)


def _read(text: str, *, is_own: bool = True) -> None:
    read_catalogue(text.encode(), source="images.toml", is_own=is_own)


def test_a_catalogue_is_read_as_it_was_written() -> None:
    images = read_catalogue(_GOOD.encode(), source="images.toml", is_own=True)
    assert images == {
        ID: an_image(b"a", url="https://images.example.com/a", name="Debian"),
        "ami-12345678": an_image(
            b"b", id="ami-12345678", path="/srv/b", architecture="arm64", firmware="uefi"
        ),
    }


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        (ID, "ami-0123", "line 2: image[0].id: is 'ami-0123'"),
        (ID, "../../etc/shadow", "line 2: image[0].id: is"),
        (ID, f"{ID}\\n", "line 2: image[0].id: is"),
        ('"ami-12345678"', f'"{ID}"', f"line 10: image[1].id: {ID} is there twice"),
        ('id = "ami-12345678"', "", "line 9: image[1].id: is missing"),
        ('name = "Debian"', "nmae = 1", "line 8: image[0].nmae: is not a known key"),
        ("https://images", "http://images", "line 3: image[0].url: is a URL of http"),
        ("https://images.example.com/a", "file:///etc/shadow", "line 3: image[0].url: is a URL"),
        ("https://images.example.com/a", "/etc/shadow", "line 3: image[0].url: is a URL of no"),
        ("https://images.example.com/a", "https://images.example.com", "image[0].url: names no"),
        ("https://images.example.com/a", "s3://bucket", "line 3: image[0].url: names no host or"),
        ("https://images.example.com/a", "https://[::1", "line 3: image[0].url: is no URL"),
        ('url = "https', 'path = "/a"\nurl = "https', "image[0].url: and path are both there"),
        ('path = "/srv/b"', "", "line 9: image[1].url: and path are both missing"),
        ('"/srv/b"', '"b"', "line 11: image[1].path: is 'b'"),
        ('format = "raw"', 'format = "vmdk"', "image[0].format: is 'vmdk'; expected one of qcow2"),
        ('"arm64"', '"aarch64"', "line 14: image[1].architecture: is 'aarch64'"),
        ('firmware = "uefi"', "", "line 9: image[1].firmware: is bios, which arm64"),
        ("sha256 = ", 'sha256 = "1234" #', "image[0].sha256: is '1234'; expected 64 lower-case"),
        ("[[image]]", "[image]", "is no TOML"),
        ("[[image]]\nid", "[[images]]\nid", "images: is not a known key; expected one of image"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(good: str, bad: str, told: str) -> None:
    assert good in _GOOD
    with pytest.raises(InvalidConfiguration) as caught:
        _read(_GOOD.replace(good, bad, 1))
    assert str(caught.value).startswith("images.toml")
    assert told in str(caught.value)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidConfiguration, match="holds a user or a password") as caught:
        _read(_GOOD.replace("https://", "https://me:s3cret@"))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"image = " + b"[" * 9_999 + b"]" * 9_999])
def test_bytes_that_are_no_toml_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidConfiguration, match="is no TOML"):
        read_catalogue(content, source="images.toml", is_own=True)


@pytest.mark.parametrize("more", [" a", "\\u0000", "\\r\\nX: y", "\\t"])
def test_what_no_request_can_hold_is_refused_in_a_url(more: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"url: has a space or a control character"):
        _read(_GOOD.replace("https://images.example.com/", f"https://images.example.com/{more}", 1))


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match=r"path: .* an absolute path"):
        _read(_GOOD.replace('path = "/', 'path = "/\\u0000', 1))


def test_a_regions_catalogue_names_no_file_of_a_node() -> None:
    with pytest.raises(InvalidConfiguration, match=r"line 11: image\[1\]\.path"):
        _read(_GOOD, is_own=False)
