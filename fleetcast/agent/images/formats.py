"""Reads from an image file what is needed before a guest may use it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from fleetcast.agent.drivers import BootFailed

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.images.catalogue import ImageFormat

# Magic, version, backing file's offset and length, cluster bits, virtual size.
# Source: QEMU, docs/interop/qcow2.txt.
_QCOW2: Final = struct.Struct(">4sIQIIQ")
_QCOW2_MAGIC: Final = b"QFI\xfb"
_QCOW2_FEATURES: Final = struct.Struct(">Q")
_QCOW2_FEATURES_AT: Final = 72
_QCOW2_WITH_FEATURES: Final = 3
_EXTERNAL_DATA_FILE: Final = 1 << 2


def virtual_size_bytes(path: Path, image_format: ImageFormat) -> int:
    """Return how large the disk is that an image holds.

    Raises BootFailed for a qcow2 file that is none, or that consists of other files too: those
    would be files of the host, given to a guest.
    """
    if image_format == "raw":
        return path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_QCOW2_FEATURES_AT + _QCOW2_FEATURES.size)
    if len(header) < _QCOW2_FEATURES_AT or not header.startswith(_QCOW2_MAGIC):
        raise BootFailed("it is no qcow2 file, as its catalogue says")
    _, version, backing_at, _, _, size_bytes = _QCOW2.unpack_from(header)
    features = 0
    if version >= _QCOW2_WITH_FEATURES and len(header) >= _QCOW2_FEATURES_AT + 8:
        (features,) = _QCOW2_FEATURES.unpack_from(header, _QCOW2_FEATURES_AT)
    if backing_at or features & _EXTERNAL_DATA_FILE:
        raise BootFailed("its qcow2 file needs another file; convert it into one with qemu-img")
    return int(size_bytes)
