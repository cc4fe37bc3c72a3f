"""A node with nothing to boot is not asked, and is as soon as there is something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetcast.agent.bootable import BootableWatch
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.capacity import Resources

if TYPE_CHECKING:
    import pytest

NEED = Resources(vcpu=1, memory_mib=512)


class _Node:
    def __init__(self, lacked: str | None) -> None:
        self.lacked = lacked
        self.changes_n = 0
        self.ledger = Ledger(Resources(vcpu=2, memory_mib=1024))
        self.watch = BootableWatch(lambda: self.lacked, self.ledger, capacity_changed=self._changed)

    def _changed(self) -> None:
        self.changes_n += 1


def test_it_has_no_room_until_there_is_something_to_boot() -> None:
    node = _Node("no image")
    node.watch.look()
    assert node.ledger.room(NEED) == 0
    assert node.ledger.closed == "nothing to boot: no image"
    node.lacked = None
    node.watch.look()
    assert node.ledger.room(NEED) == 2
    assert node.changes_n == 2


def test_it_closes_again_when_the_last_is_taken_away() -> None:
    node = _Node(None)
    node.watch.look()
    assert (node.ledger.room(NEED), node.changes_n) == (2, 0)
    node.lacked = "no image"
    node.watch.look()
    assert node.ledger.room(NEED) == 0


def test_what_else_keeps_it_closed_still_does() -> None:
    node = _Node("no image")
    node.watch.look()
    node.ledger.close("cordoned")
    node.lacked = None
    node.watch.look()
    assert node.ledger.closed == "cordoned"


def test_it_says_each_change_once(caplog: pytest.LogCaptureFixture) -> None:
    node = _Node("no image")
    with caplog.at_level("INFO"):
        for lacked in ("no image", "no image", None, None):
            node.lacked = lacked
            node.watch.look()
    assert [record.message for record in caplog.records] == [
        "nothing to boot: taking no launches",
        "there is something to boot: taking launches",
    ]
