"""What runs the guests of a node. The agent knows drivers only by this contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec

from fleetcast.capacity import Resources
from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.instance_types import InstanceType
    from fleetcast.messages import LaunchRequest

# As many as EC2 shows.
CONSOLE_BYTES: Final = 65_536


class BootFailed(FleetcastError):
    """A guest could not be started. The message is shown to the instance's owner."""


class ClientFault(FleetcastError):
    """A launch asks for what no node has, e.g. an unknown image. code: EC2's error code."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class NodeFault(FleetcastError):
    """This node can't say whether what a launch asks for is there; another one may."""


class Addresses(NamedTuple):
    """Where a guest is in its network. mac: six pairs of hex digits with colons.

    private_ip: None if only its network knows.
    """

    private_ip: str | None
    mac: str


class Guest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything a driver needs to run one instance; journaled before the launch is accepted.

    attempt: the fencing number under which the node holds it. root_disk_gib: None: as large as its
    image. overhead_mib: what running it takes of the host's memory beside the guest's own.
    disk_gib: what is booked of the host's disk for it. private_ip_address, mac_address: None if it
    is in no network. gpu_addresses: the GPUs that its driver gave it as it booted, by PCI address.
    """

    instance_id: str
    launch_id: str
    attempt: int
    launch_index: int
    account_id: str
    instance_type: str
    vcpu: int
    memory_mib: int
    gpus: int
    image_id: str
    user_data_base64: str | None
    key_name: str | None
    shutdown_behavior: str
    tags: dict[str, str]
    root_disk_gib: int | None = None
    overhead_mib: int = 0
    private_ip_address: str | None = None
    mac_address: str | None = None
    disk_gib: int = 0
    gpu_addresses: tuple[str, ...] = ()

    @property
    def uses(self) -> Resources:
        """What it takes of its host, with what runs it."""
        return Resources(
            vcpu=self.vcpu,
            memory_mib=self.memory_mib + self.overhead_mib,
            gpus=self.gpus,
            disk_gib=self.disk_gib,
        )

    def __repr__(self) -> str:
        """Leave out what the user gave in confidence: a repr ends up in logs."""
        return f"Guest({self.instance_id}, {self.instance_type}, attempt {self.attempt})"


class ConsoleOutput(NamedTuple):
    """The end of what a guest has written to its console. written_at_ms: when, epoch ms."""

    output: bytes
    written_at_ms: int


class GuestUse(NamedTuple):
    """What a guest has really taken of its host by now: memory, with what runs it, and disk."""

    memory_mib: int
    disk_mib: int


class GuestEnd(NamedTuple):
    """A guest has ended without being told to. why: shown to the instance's owner."""

    instance_id: str
    how: Literal["powered off", "crashed"]
    why: str


class Driver(Protocol):
    """Runs guests. Every call may be repeated: the agent repeats what a crash interrupted."""

    @property
    def accelerator(self) -> str | None:
        """What runs its guests' CPUs, kvm or tcg; None: nothing, they are simulated."""

    def check(self, request: LaunchRequest, instance_type: InstanceType) -> None:
        """Refuse what could not be booted. Takes no time: launches wait for it.

        Raises ClientFault and NodeFault.
        """

    def addresses(self, instance_id: str) -> Addresses | None:
        """Return where that guest is, or will be, in its network; None if these have none."""

    def overhead_mib(self, memory_mib: int) -> int:
        """Return what a guest of that size takes of the host's memory beside its own, in MiB."""

    def lacks(self) -> str | None:
        """Say without what no new guest could boot here, or None. Takes no time."""

    async def in_use(self) -> Mapping[str, GuestUse]:
        """Return what the guests that run have taken by now, by id; it is asked every few seconds.

        Empty, if they take nothing of the host.
        """

    async def boot(self, guest: Guest) -> None:
        """Start the guest, and return when it runs; at once if it already does.

        It may be new, or may have been stopped, or have ended by itself: then it runs on what it
        ran on before.

        Raises BootFailed.
        """

    async def stop(self, instance_id: str) -> None:
        """Shut the guest down and keep what is its; one that has ended by itself is tidied up."""

    async def reboot(self, instance_id: str) -> None:
        """Start a running guest anew; nothing to do if it doesn't run."""

    async def destroy(self, instance_id: str) -> None:
        """End the guest and remove all that was its; nothing to do if it is not there."""

    async def console_output(self, instance_id: str) -> ConsoleOutput | None:
        """Return the last CONSOLE_BYTES of its console; None if it has none."""

    async def next_end(self) -> GuestEnd:
        """Wait for the next guest that ends without being told to. Each end is told once.

        One that was told, but that neither boot nor stop nor destroy has followed, is told again
        after the agent has been restarted.
        """

    async def alive(self) -> Mapping[str, Guest]:
        """Return all guests that run now, by id, whoever started them.

        Also those that have ended by themselves, if it knows how: `next_end` then tells it. Without
        user data and tags, if the driver didn't keep them.
        """
