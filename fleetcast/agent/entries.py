"""What a node knows of an instance, as its journal keeps it. No I/O."""

from __future__ import annotations

import msgspec

from fleetcast.agent.drivers import Guest
from fleetcast.messages import MAX_LEASE_MS, InstanceReport, InstanceState


# gc=False, here and in what it holds: a node has many, and nothing in them leads back to them.
class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One instance as the node last knew it.

    changed_at_s: epoch seconds. held_until_ms: it waits for Commit until then, epoch milliseconds;
    None: it doesn't wait. given_up: it has ended, or is ending, because its launch didn't want it
    here any more; under a newer attempt it may come back. has_run: it may have run, so what it ran
    on is kept when it stops. crashed_at_s: when its guest has crashed of late, epoch seconds.
    is_down: it has, and hasn't been started again since.
    """

    guest: Guest
    state: InstanceState
    changed_at_s: float
    state_reason_code: str | None = None
    state_reason_message: str | None = None
    held_until_ms: int | None = None
    given_up: bool = False
    has_run: bool = False
    crashed_at_s: tuple[float, ...] = ()
    is_down: bool = False

    def named(self) -> dict[str, str]:
        """Return what every log line about it holds."""
        return {"instance": self.guest.instance_id, "launch": self.guest.launch_id}

    @property
    def is_held(self) -> bool:
        """Say whether it waits for Commit."""
        return self.held_until_ms is not None

    def has_lapsed(self, now_ms: float) -> bool:
        """Say whether its lease has ended, and it may no longer be committed.

        A lease that would last longer than any has ended too: the clock has been set back, and
        would keep its room for as much.
        """
        if self.held_until_ms is None:
            return False
        return not 0 < self.held_until_ms - now_ms <= MAX_LEASE_MS

    @property
    def has_ended(self) -> bool:
        """Say whether it has ended or is ending, for good."""
        return self.state in {"shutting-down", "terminated"}

    def report(self) -> InstanceReport:
        """Return what others are told of it."""
        return InstanceReport(
            instance_id=self.guest.instance_id,
            launch_id=self.guest.launch_id,
            attempt=self.guest.attempt,
            instance_type=self.guest.instance_type,
            state=self.state,
            state_reason_code=self.state_reason_code,
            state_reason_message=self.state_reason_message,
            account_id=self.guest.account_id,
            held=True if self.is_held else msgspec.UNSET,
            private_ip_address=self.guest.private_ip_address or msgspec.UNSET,
            mac_address=self.guest.mac_address or msgspec.UNSET,
        )


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """An instance is not to be accepted under this attempt or an older one.

    set_at_s: epoch seconds.
    """

    instance_id: str
    attempt: int
    set_at_s: float
