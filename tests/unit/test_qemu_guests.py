"""A local stack with real guests says what it needs before it starts anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetcast.local.qemu_guests import QemuMissing, check_qemu

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_missing_of_qemu_is_named_with_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(QemuMissing, match=r"apt-get install qemu-system-x86 qemu-utils$"):
        check_qemu()
    (tmp_path / "qemu-img").touch(mode=0o755)
    with pytest.raises(QemuMissing, match=r"apt-get install qemu-system-x86$"):
        check_qemu()
    (tmp_path / "qemu-system-x86_64").touch(mode=0o755)
    check_qemu()
