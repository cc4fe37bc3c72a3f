"""Building the small Linux guest: what is missing is named, and half an image is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.local.guest_image import GuestImageFailed, build_guest_image

if TYPE_CHECKING:
    from pathlib import Path


def _stand_in(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("apt", "complaint"),
    [
        ({}, "apt-cache is missing; try, on Debian, apt-get install busybox-static"),
        (
            {"apt-cache": "echo 'E: No packages found' >&2; exit 100"},
            "No packages found; try, as root, apt-get update",
        ),
        (
            {"apt-cache": "echo linux-image-1", "apt-get": "echo '404 Not Found' >&2; exit 100"},
            "apt-get download linux-image-1 failed: 404 Not Found; try, as root, apt-get update",
        ),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apt: dict[str, str], complaint: str
) -> None:
    programs, folder = tmp_path / "programs", tmp_path / "images"
    programs.mkdir()
    for name, script in apt.items():
        _stand_in(programs, name, script)
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(GuestImageFailed, match=complaint):
        build_guest_image(folder)
    assert list(folder.iterdir()) == []
