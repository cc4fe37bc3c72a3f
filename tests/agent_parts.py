"""The agent's parts put together without a connection, and requests to deliver to them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast import messages
from fleetcast.agent.capacity.host_load import HostLoad
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.capacity.report import CapacityReport
from fleetcast.agent.capacity.served_types import ServedTypes
from fleetcast.agent.cordon import Cordon
from fleetcast.agent.drain import Drain
from fleetcast.agent.drivers import BootFailed, Guest
from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.agent.guests import Guests
from fleetcast.agent.holds import Holds
from fleetcast.agent.instances import Instances
from fleetcast.agent.journal import Journal
from fleetcast.agent.launches import LaunchDesk
from fleetcast.agent.node_actions import NodeActions
from fleetcast.agent.owner_actions import OwnerActions
from fleetcast.agent.set_aside import SetAside
from fleetcast.capacity import Resources
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fleetcast.agent.drivers import Driver

NOW_MS: Final = 1_700_000_000_000
TYPES: Final = {
    name: ec2_catalogue().lookup(name) for name in ("t3.medium", "t3.xlarge", "t3.2xlarge")
}
# Four t3.medium, or one t3.2xlarge.
EIGHT_VCPU: Final = Resources(vcpu=8, memory_mib=32_768)


def instance_id(number: int) -> str:
    return f"i-{number:017x}"


def launch_id(number: int) -> str:
    return f"r-{number:017x}"


def a_guest(number: int, **changed: object) -> Guest:
    fields: dict[str, object] = {
        "instance_id": instance_id(number),
        "launch_id": launch_id(number),
        "attempt": 1,
        "launch_index": 0,
        "account_id": "000000000000",
        "instance_type": "t3.medium",
        "vcpu": 2,
        "memory_mib": 4096,
        "gpus": 0,
        "image_id": "ami-12345678",
        "user_data_base64": "c2VjcmV0",
        "key_name": None,
        "shutdown_behavior": "stop",
        "tags": {"Name": "private"},
    }
    return Guest(**(fields | changed))  # type: ignore[arg-type] # a test names what differs


def launch_headers(
    launch: int = 1,
    *,
    attempt: int = 1,
    expires_at_ms: int = NOW_MS + 1000,
    sent_at_ms: int | None = None,
) -> dict[str, str]:
    return messages.LaunchHeaders(
        launch_id=launch_id(launch),
        attempt=attempt,
        expires_at_ms=expires_at_ms,
        sent_at_ms=sent_at_ms,
    ).encode()


def launch_request(
    *numbers: int,
    instance_type: str = "t3.medium",
    hold_ms: int | None = None,
    shutdown_behavior: messages.ShutdownBehavior = "stop",
) -> bytes:
    return messages.encode(
        messages.LaunchRequest(
            account_id="000000000000",
            instances=tuple(
                messages.InstanceToLaunch(instance_id=instance_id(number), launch_index=at)
                for at, number in enumerate(numbers)
            ),
            instance_type=instance_type,
            image_id="ami-12345678",
            user_data_base64="c2VjcmV0",
            shutdown_behavior=shutdown_behavior,
            tags={"Name": "private"},
            hold_ms=msgspec.UNSET if hold_ms is None else hold_ms,
        )
    )


def attempt_request(
    *numbers: int,
    launch: int = 1,
    attempt: int = 1,
    expires_at_ms: int | msgspec.UnsetType = msgspec.UNSET,
) -> messages.AttemptRequest:
    return messages.AttemptRequest(
        launch_id=launch_id(launch),
        attempt=attempt,
        instance_ids=tuple(instance_id(number) for number in numbers),
        expires_at_ms=expires_at_ms,
    )


@dataclass
class Delivered:
    """A request as NATS delivers it; it records what it is answered."""

    data: bytes
    headers: dict[str, str] | None = None
    subject: str = ""
    reply: str = "_INBOX.requester"
    answers: list[bytes] = field(default_factory=list)

    async def respond(self, data: bytes) -> None:
        self.answers.append(data)

    def launch_reply(self) -> messages.LaunchReply:
        (answer,) = self.answers
        return messages.decode_launch_reply(answer)

    def accepted(self) -> tuple[str, ...]:
        reply = self.launch_reply()
        assert isinstance(reply, messages.Accepted), reply
        return reply.instance_ids

    def rejected(self) -> str:
        reply = self.launch_reply()
        assert isinstance(reply, messages.Rejected), reply
        return reply.reason


def a_launch(
    *numbers: int,
    launch: int = 1,
    attempt: int = 1,
    instance_type: str = "t3.medium",
    expires_at_ms: int = NOW_MS + 1000,
    sent_at_ms: int | None = None,
    hold_ms: int | None = None,
    shutdown_behavior: messages.ShutdownBehavior = "stop",
    reply: str = "_INBOX.requester",
) -> Delivered:
    headers = launch_headers(
        launch, attempt=attempt, expires_at_ms=expires_at_ms, sent_at_ms=sent_at_ms
    )
    body = launch_request(
        *numbers,
        instance_type=instance_type,
        hold_ms=hold_ms,
        shutdown_behavior=shutdown_behavior,
    )
    return Delivered(body, headers, reply=reply)


class HeldUpDriver(SimulatedDriver):
    """Boots, stops and destroys only when it is let.

    Boots of `failing` ids fail, and ends of `indestructible` ones.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, now_s=lambda: NOW_MS / 1000)
        self.may_boot = asyncio.Event()
        self.may_destroy = asyncio.Event()
        self.may_destroy.set()
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.booting: set[str] = set()
        self.failing: set[str] = set()
        self.indestructible: set[str] = set()

    async def boot(self, guest: Guest) -> None:
        self.booting.add(guest.instance_id)
        await self.may_boot.wait()
        if guest.instance_id in self.failing:
            raise BootFailed("no such image")
        await super().boot(guest)

    async def stop(self, instance_id: str) -> None:
        await self.may_stop.wait()
        await super().stop(instance_id)

    async def destroy(self, instance_id: str) -> None:
        await self.may_destroy.wait()
        if instance_id in self.indestructible:
            raise OSError("can't be destroyed")
        await super().destroy(instance_id)


class UnitNode:
    """One node without a connection. changes: how often free capacity was said to change."""

    def __init__(
        self,
        state_dir: Path,
        *,
        driver: Driver | None = None,
        total: Resources = EIGHT_VCPU,
        root_disk_gib: int = 0,
    ) -> None:
        self.changes = 0
        self.now_s = NOW_MS / 1000
        self.journal = Journal.open(state_dir / "journal.sqlite")
        self.ledger = Ledger(total)
        self.driver = driver or SimulatedDriver(state_dir / "guests", now_s=self._now_s)
        self.served_types = ServedTypes(
            TYPES, overhead_mib=self.driver.overhead_mib, root_disk_gib=root_disk_gib
        )
        self.instances = Instances(
            journal=self.journal,
            ledger=self.ledger,
            now_s=self._now_s,
            capacity_changed=self._count_change,
        )
        self.timers: list[Callable[[], None]] = []
        self.set_aside = SetAside(
            ledger=self.ledger,
            call_later=lambda _, what: self.timers.append(what),
            capacity_changed=self._count_change,
        )
        self.guests = Guests(
            instances=self.instances,
            ledger=self.ledger,
            driver=self.driver,
            set_aside=self.set_aside,
            call_later=lambda _, what: self.timers.append(what),
            capacity_changed=self._count_change,
        )
        self.holds = Holds(instances=self.instances, guests=self.guests, now_ms=self._now_ms)
        self.owner_actions = OwnerActions(instances=self.instances, guests=self.guests)
        self.desk = LaunchDesk(
            node="n1",
            zone=None,
            served_types=self.served_types,
            instances=self.instances,
            guests=self.guests,
            set_aside=self.set_aside,
            now_ms=self._now_ms,
            capacity_changed=self._count_change,
        )
        self.cordon = Cordon(
            state_dir / "cordon.json",
            ledger=self.ledger,
            launches_decided=self.desk.settled,
            capacity_changed=self._count_change,
        )
        self.drain = Drain(
            cordon=self.cordon, instances=self.instances, owner_actions=self.owner_actions
        )
        self.host_load = HostLoad(state_dir, gpu_utilization=lambda: None)
        self.actions = NodeActions(
            node="n1",
            zone="z1",
            instances=self.instances,
            holds=self.holds,
            owner_actions=self.owner_actions,
            drain=self.drain,
            capacity_report=CapacityReport(
                node="n1",
                zone="z1",
                served_types=self.served_types,
                instances=self.instances,
                ledger=self.ledger,
                host_load=self.host_load,
                accelerator=self.driver.accelerator,
                tokens=dict,
                now_ms=self._now_ms,
            ),
            now_s=self._now_s,
        )

    def _now_s(self) -> float:
        return self.now_s

    def _now_ms(self) -> int:
        return round(self.now_s * 1000)

    def _count_change(self) -> None:
        self.changes += 1

    async def launch(self, *requests: Delivered) -> None:
        """Deliver these in one batch and wait until they have been answered."""
        for request in requests:
            self.desk.deliver(request)
        await self.desk.settled()

    def state_of(self, number: int) -> str | None:
        entry = self.instances.get(instance_id(number))
        return entry.state if entry else None


@contextlib.asynccontextmanager
async def unit_node(
    state_dir: Path,
    *,
    driver: Driver | None = None,
    total: Resources = EIGHT_VCPU,
    root_disk_gib: int = 0,
) -> AsyncIterator[UnitNode]:
    """Start a node as the agent does: what the journal holds first, then the desk."""
    node = UnitNode(state_dir, driver=driver, total=total, root_disk_gib=root_disk_gib)
    await node.guests.restore()
    desk = asyncio.create_task(node.desk.run())
    try:
        yield node
    finally:
        desk.cancel()
        await asyncio.gather(desk, return_exceptions=True)
        if not isinstance(node.driver, HeldUpDriver):
            await node.guests.idle()
        node.journal.close()


async def a_few_turns() -> None:
    """Let everything go on that waits for nothing but its turn."""
    for _ in range(10):
        await asyncio.sleep(0)


def make_journal_refuse(state_dir: Path, *numbers: int) -> None:
    """Make SQLite itself refuse to write these instances, as it does on a full disk."""
    Journal.open(state_dir / "journal.sqlite").close()
    refused = ", ".join(f"'{instance_id(number)}'" for number in numbers)
    with contextlib.closing(sqlite3.connect(state_dir / "journal.sqlite")) as database:
        database.execute(
            "CREATE TRIGGER disk_full BEFORE INSERT ON instances"
            f" WHEN NEW.instance_id IN ({refused})"
            " BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        )
        database.commit()


def make_journal_accept(state_dir: Path) -> None:
    """Give the disk room again."""
    with contextlib.closing(sqlite3.connect(state_dir / "journal.sqlite")) as database:
        database.execute("DROP TRIGGER disk_full")
        database.commit()


def let_journal_write(journal: Journal) -> None:
    """Give the disk room again under a journal that is open."""
    drop = partial(journal._database.execute, "DROP TRIGGER disk_full")  # noqa: SLF001 - it has the lock
    journal._thread.submit(drop).result()  # noqa: SLF001 - SQLite's connections keep to a thread


class HeldUpJournal:
    """Holds the journal of a node up: writes wait until it is let go."""

    def __init__(self, journal: Journal) -> None:
        self._may_write = threading.Event()
        # The journal has one thread, and this is the first thing that it does from now on.
        journal._thread.submit(self._may_write.wait)  # noqa: SLF001 - a disk that hangs

    def let_go(self) -> None:
        self._may_write.set()
