"""A catalogue of images, images.toml: what it must say, and how it is read. Pure.

[[image]]
id = "ami-0123456789abcdef0"
url = "https://images.example.com/debian-12.qcow2"   # or s3://bucket/key
# path = "/srv/images/debian-12.qcow2"               # instead: a file of the node
sha256 = "…"                                         # as sha256sum prints it
format = "qcow2"                                     # or "raw"
architecture = "x86_64"                              # or "arm64"
firmware = "uefi"                                    # or "bios", the default
name = "Debian 12"                                   # optional, for people
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from fleetcast.agent.images.urls import check_url
from fleetcast.agent.setting_types import AbsolutePath
from fleetcast.agent.toml_lines import placed, read_toml
from fleetcast.configuration import read_struct
from fleetcast.errors import InvalidConfiguration

IMAGE_ID_PATTERN: Final = r"^ami-([0-9a-f]{8}|[0-9a-f]{17})\Z"

ImageFormat: TypeAlias = Literal["qcow2", "raw"]
Firmware: TypeAlias = Literal["bios", "uefi"]
Architecture: TypeAlias = Literal["x86_64", "arm64"]
Catalogue: TypeAlias = dict[str, "Image"]

_ImageId: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=IMAGE_ID_PATTERN, description='"ami-" and 8 or 17 lower-case hexadecimal digits'
    ),
]
_Sha256: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9a-f]{64}\Z",
        description="64 lower-case hexadecimal digits, as sha256sum prints them",
    ),
]


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """What an image id stands for. Exactly one of path (absolute) and url is there.

    Raises InvalidConfiguration, naming the field, for anything else.
    """

    id: _ImageId
    sha256: _Sha256
    format: ImageFormat
    architecture: Architecture
    firmware: Firmware = "bios"
    path: AbsolutePath | None = None
    url: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.url is None):
            both = "and path are both there" if self.url else "and path are both missing"
            raise InvalidConfiguration("url", both, expected="one of them")
        if self.url is not None:
            check_url(self.url, key="url")
        if self.architecture == "arm64" and self.firmware == "bios":
            raise InvalidConfiguration(
                "firmware", "is bios, which arm64 doesn't have", expected='firmware = "uefi"'
            )

    @property
    def source(self) -> str:
        """Where its content is: the URL, or the path."""
        return self.url or self.path or ""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    image: tuple[Image, ...] = ()


def read_catalogue(text: bytes, *, source: str, is_own: bool) -> Catalogue:
    """Return the images of a catalogue by id.

    source: what errors call it. is_own: whether it is the node's own, which may name its files.
    Raises InvalidConfiguration with the source, the line and the key.
    """
    values, decoded = read_toml(
        text, source=source, expected='tables such as [[image]] with id = "ami-…"'
    )
    try:
        return _by_id(read_struct(values, _File).image, is_own=is_own)
    except InvalidConfiguration as problem:
        raise placed(problem, decoded, source=source) from problem


def _by_id(images: tuple[Image, ...], *, is_own: bool) -> Catalogue:
    catalogue: Catalogue = {}
    for at, image in enumerate(images):
        if image.id in catalogue:
            raise InvalidConfiguration(
                f"image[{at}].id", f"{image.id} is there twice", expected="each id once"
            )
        if image.path is not None and not is_own:
            # Whoever writes the region's catalogue must not read files of its nodes through it.
            raise InvalidConfiguration(
                f"image[{at}].path", "stands in a region's catalogue", expected="a url"
            )
        catalogue[image.id] = image
    return catalogue
