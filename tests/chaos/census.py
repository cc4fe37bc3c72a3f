"""A census from outside: what records, inventories, journals and guests say, held together.

It asks nobody's opinion of what should be: records are read from the table, inventories over
NATS, journals as SQLite files, and guests as the files of the simulated driver.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers.simulated import running_guests
from fleetcast.agent.entries import Entry
from fleetcast.capacity import Resources, how_many_fit, resources_of
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fleetcast.messages import InstanceReport
    from lambdas.launch_table import Reservation
    from lambdas.records import InstanceRecord
    from tests.chaos.nodes import Node

LIVE: Final = frozenset({"pending", "running", "stopping", "stopped"})
_CATALOGUE: Final = ec2_catalogue()


@dataclass(frozen=True, kw_only=True)
class Census:
    """What was found, by node where it is a node's.

    acknowledged: the ids that callers were told of and haven't terminated. inventories: of the
    nodes that answered.
    """

    nodes: Mapping[str, Node]
    records: Mapping[str, InstanceRecord]
    reservations: Iterable[Reservation]
    inventories: Mapping[str, Mapping[str, InstanceReport]]
    journals: Mapping[str, Mapping[str, Entry]]
    guests: Mapping[str, frozenset[str]]
    acknowledged: frozenset[str]

    def holders(self) -> dict[str, set[str]]:
        """Return the nodes on which each instance lives, by what its guest or its journal says."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for node in self.nodes:
            for one in self.guests[node]:
                found[one].add(node)
            for one, entry in self.journals[node].items():
                if entry.state in LIVE and not entry.is_held:
                    found[one].add(node)
        return dict(found)

    def holders_on(self, node: str) -> set[str]:
        """Return what lives on a node."""
        return {one for one, nodes in self.holders().items() if node in nodes}

    @property
    def duplicates(self) -> set[str]:
        """Instances that live on more than one node."""
        return {one for one, nodes in self.holders().items() if len(nodes) > 1}

    @property
    def strays(self) -> set[str]:
        """Instances that live where no record says."""
        return {
            one
            for one, nodes in self.holders().items()
            for node in nodes
            if (record := self.records.get(one)) is None
            or record.state not in LIVE
            or (record.region, record.node) != (self.nodes[node].region, node)
        }

    def free_slots(self, instance_type: str) -> int:
        """Return how many more of a type the nodes have room for."""
        need = resources_of(_CATALOGUE.lookup(instance_type))
        return sum(
            how_many_fit(node.total - self._used(name), need) for name, node in self.nodes.items()
        )

    def _used(self, node: str) -> Resources:
        used = [
            resources_of(_CATALOGUE.lookup(entry.guest.instance_type))
            for one, entry in self.journals[node].items()
            if one in self.guests[node] or entry.state == "pending"
        ]
        return Resources(
            vcpu=sum(one.vcpu for one in used),
            memory_mib=sum(one.memory_mib for one in used),
            gpus=sum(one.gpus for one in used),
        )

    # --- the invariants --------------------------------------------------------------------

    def check(self) -> None:
        """Check what must hold whenever all is quiet and reconcile has run twice."""
        self.check_nodes()
        self._check_records()
        assert not self.duplicates  # I1
        assert not self.strays  # I1, I4, I6

    def check_nodes(self) -> None:
        """Check that what nodes tell, what they remember and what runs on them are one."""
        for name, node in self.nodes.items():
            used = self._used(name)
            assert used.vcpu <= node.total.vcpu, (name, used)  # I2
            assert used.memory_mib <= node.total.memory_mib, (name, used)  # I2
            journal = {
                one: entry
                for one, entry in self.journals[name].items()
                if entry.state != "terminated"
            }
            told = {
                one: report.state
                for one, report in self.inventories[name].items()
                if report.state != "terminated"
            }
            # That a guest runs is the driver's to know, and isn't written down.
            assert told == {
                one: "running" if one in self.guests[name] else entry.state
                for one, entry in journal.items()
            }, name
            assert {one for one, state in told.items() if state == "running"} == self.guests[name]

    def _check_records(self) -> None:
        undecided = [one for one in self.reservations if one.state in {"placing", "unknown"}]
        assert not undecided
        refused = {
            one for it in self.reservations if it.state == "refused" for one in it.instance_ids
        }
        assert not refused & self.records.keys()  # I4
        holders = self.holders()
        for one, record in self.records.items():
            if record.state in LIVE:
                assert holders.get(one) == {record.node}, (record, holders.get(one))  # I1, I7
                report = self.inventories[record.node or ""][one]
                assert (report.attempt, report.launch_id) == (
                    record.attempt,
                    record.reservation_id,
                )
        for one in self.acknowledged:
            assert self.records[one].state in LIVE, one  # I7, I10
        placed = Counter(
            one for it in self.reservations if it.state == "placed" for one in it.instance_ids
        )
        assert placed.keys() == self.records.keys()
        assert max(placed.values(), default=1) == 1


def read_journal(node: Node) -> dict[str, Entry]:
    """Read a copy of a node's journal: its agent lets nobody else at the file."""
    with tempfile.TemporaryDirectory() as folder:
        for path in node.state_dir.glob("journal.sqlite*"):
            shutil.copy(path, folder)
        with contextlib.closing(sqlite3.connect(Path(folder) / node.journal.name)) as database:
            rows = database.execute("SELECT instance_id, entry FROM instances").fetchall()
    return {one: msgspec.msgpack.decode(entry, type=Entry) for one, entry in rows}


def read_guests(node: Node) -> frozenset[str]:
    """Return the guests that run on a node."""
    return running_guests(node.guests)
