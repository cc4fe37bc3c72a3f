"""What is kept of a launch for two weeks, however long its instances live.

This module owns the form of the history that stands in the Fleet table's reservations, which
launching writes and `fleetcast scores replay` reads. It is pure: standard library and msgspec
only.
"""

from __future__ import annotations

from typing import Final

import msgspec

LAUNCH_KEPT_S: Final = 14 * 86_400  # as long as sweeps are kept by default
RESERVATION_PREFIX: Final = "RESERVATION#"


class PastLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch. Its fields are the names of the reservation's attributes.

    launched_at_s: epoch seconds. region: which took it; None as long as none has. pinned: whether
    it was asked for in one place only, so that no score could send it elsewhere.
    """

    reservation_id: str
    instance_type: str
    launched_at_s: float
    region: str | None = None
    pinned: bool = False


def account_partition(account_id: str) -> str:
    """Return the pk under which an account's reservations stand."""
    return f"ACCOUNT#{account_id}"
