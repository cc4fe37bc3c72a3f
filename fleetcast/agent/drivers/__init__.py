"""What runs the guests of a node. The agent knows drivers only by this contract."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fleetcast.errors import FleetcastError


class BootFailed(FleetcastError):
    """A guest could not be started. The message is shown to the instance's owner."""


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a driver needs to run one instance; journaled before the launch is accepted.

    attempt: the fencing number under which the node holds it.
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

    def __repr__(self) -> str:
        """Leave out what the user gave in confidence: a repr ends up in logs."""
        return f"Guest({self.instance_id}, {self.instance_type}, attempt {self.attempt})"


class Driver(Protocol):
    """Runs guests. Every call may be repeated: the agent repeats what a crash interrupted."""

    async def boot(self, guest: Guest) -> None:
        """Start the guest and return when it runs; at once if it already does.

        Raises BootFailed.
        """

    async def destroy(self, instance_id: str) -> None:
        """End the guest and remove all that was its; nothing to do if it is not there."""

    async def alive(self) -> frozenset[str]:
        """Return the ids of all guests that run now, whoever started them."""
