"""The Fleet table's sparse index of what reconcile looks after. Pure.

An item is in it as long as it has `live_pk`:

    REGION#us-east-1   an instance that is placed in that region and not terminated
    UNDECIDED          a launch that is not decided yet

The index follows the table a moment later: it tells what to look at, never what to do.
A partition of it takes 1,000 writes a second, of which a launch makes two and an instance's every
change of state one.
"""

from __future__ import annotations

from typing import Final

LIVE_INDEX: Final = "live"
LIVE_KEY: Final = "live_pk"
UNDECIDED: Final = "UNDECIDED"
# What is copied to the index beside the keys: nothing that can be large, above all no tags.
LIVE_ATTRIBUTES: Final = (
    "account_id",
    "attempt",
    "instance_id",
    "node",
    "reservation_id",
    "state",
    "undecided_until_s",
    "unreachable_since_s",
)


def region_partition(region: str) -> str:
    """Return the live_pk of a region's instances, and the pk of its nodes."""
    return f"REGION#{region}"
