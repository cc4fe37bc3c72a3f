"""What an agent consists of, put together for its settings.

Nothing here waits, connects or serves: in which order that is done is the daemon's.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fleetcast.agent.bootable import BootableWatch
from fleetcast.agent.capacity.gpu_load import GpuLoad, has_nvidia_driver
from fleetcast.agent.capacity.gpus import gpus_for_guests
from fleetcast.agent.capacity.host import Host
from fleetcast.agent.capacity.host_load import HostLoad
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.agent.capacity.report import CapacityReport
from fleetcast.agent.capacity.serving import types_to_serve
from fleetcast.agent.capacity.watch import CapacityWatch
from fleetcast.agent.cordon import Cordon
from fleetcast.agent.drain import Drain
from fleetcast.agent.drivers.choice import make_driver
from fleetcast.agent.guests import Guests
from fleetcast.agent.holds import Holds
from fleetcast.agent.instances import Instances
from fleetcast.agent.journal import Journal
from fleetcast.agent.launch_subjects import LaunchSubjects
from fleetcast.agent.launches import LaunchDesk
from fleetcast.agent.limited_subscription import NatsSubscriptions
from fleetcast.agent.node_actions import NodeActions
from fleetcast.agent.owner_actions import OwnerActions
from fleetcast.agent.set_aside import SetAside
from fleetcast.agent.tokens import CapacityTokens
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from fleetcast.agent.nats_client import AgentClient
    from fleetcast.agent.settings import AgentSettings


class GuestHost:
    """What this host has for guests, and what runs them there.

    Raises InvalidConfiguration, and OSError for a host that can't be measured.
    """

    def __init__(self, settings: AgentSettings, state_dir: Path) -> None:
        gpus = gpus_for_guests(settings.gpus)
        self.driver = make_driver(settings, state_dir, gpu_addresses=gpus.addresses)
        self.watch = CapacityWatch(
            settings.capacity,
            Host(state_dir).state,
            is_simulated=settings.is_simulated,
            gpus=len(gpus.addresses),
        )
        self.ledger = Ledger(self.watch.total())
        self.served_types = types_to_serve(
            settings, ec2_catalogue(), total=self.ledger.total, gpus=gpus, driver=self.driver
        )
        gpu_load = GpuLoad(self.ledger, has_own=has_nvidia_driver())
        self.load = HostLoad(state_dir, gpu_utilization=gpu_load.utilization)


class Node:
    """The parts of one node's agent. client: what launches and questions come by.

    changed: set after every change of what is free. Raises as GuestHost does, and what
    Journal.open raises.
    """

    def __init__(self, settings: AgentSettings, client: AgentClient) -> None:
        call_later = asyncio.get_running_loop().call_later
        state_dir = _state_dir(settings)
        self.changed = asyncio.Event()
        self.host = GuestHost(settings, state_dir)
        ledger = self.host.ledger
        self.bootable = BootableWatch(
            self.host.driver.lacks, ledger, capacity_changed=self.changed.set
        )
        self.journal = Journal.open(state_dir / "journal.sqlite")
        self.instances = Instances(
            journal=self.journal,
            ledger=ledger,
            now_s=time.time,
            capacity_changed=self.changed.set,
        )
        set_aside = SetAside(
            ledger=ledger, call_later=call_later, capacity_changed=self.changed.set
        )
        self.guests = Guests(
            instances=self.instances,
            ledger=ledger,
            driver=self.host.driver,
            set_aside=set_aside,
            call_later=call_later,
            capacity_changed=self.changed.set,
        )
        self.holds = Holds(instances=self.instances, guests=self.guests, now_ms=_now_ms)
        self.desk = LaunchDesk(
            node=settings.node,
            zone=settings.zone,
            served_types=self.host.served_types,
            instances=self.instances,
            guests=self.guests,
            set_aside=set_aside,
            now_ms=_now_ms,
            capacity_changed=self.changed.set,
        )
        self.subscriptions = NatsSubscriptions(client, self.desk.deliver)
        launch_subjects = LaunchSubjects(
            self.host.served_types, ledger, region=settings.region, zone=settings.zone
        )
        self.tokens = CapacityTokens(
            self.subscriptions,
            room_by_subject=launch_subjects.room,
            in_hand=self.desk.in_hand,
            call_later=call_later,
            changed=self.changed.set,
        )
        owner_actions = OwnerActions(instances=self.instances, guests=self.guests)
        cordon = Cordon(
            state_dir / "cordon.json",
            ledger=ledger,
            launches_decided=self.desk.settled,
            capacity_changed=self.changed.set,
        )
        self.drain = Drain(cordon=cordon, instances=self.instances, owner_actions=owner_actions)
        self.capacity_report = CapacityReport(
            node=settings.node,
            zone=settings.zone,
            served_types=self.host.served_types,
            instances=self.instances,
            ledger=ledger,
            host_load=self.host.load,
            accelerator=self.host.driver.accelerator,
            tokens=self.tokens.remaining,
            now_ms=_now_ms,
        )
        self.actions = NodeActions(
            node=settings.node,
            zone=settings.zone,
            instances=self.instances,
            holds=self.holds,
            owner_actions=owner_actions,
            drain=self.drain,
            capacity_report=self.capacity_report,
            now_s=time.time,
        )

    def begin_anew(self) -> None:
        """Have all subscriptions made anew: the server has them again, but not their limits."""
        self.tokens.renew()
        self.changed.set()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _state_dir(settings: AgentSettings) -> Path:
    state_dir = Path(settings.state_dir)
    try:
        # Only for the agent: the journal holds user data.
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise InvalidConfiguration(
            "state_dir",
            f"{settings.state_dir} can't be made: {problem.strerror}",
            expected="a folder that the agent may write to",
        ) from problem
    return state_dir
