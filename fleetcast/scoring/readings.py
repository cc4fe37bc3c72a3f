"""What was seen of one signal: the value, or why there is none."""

from __future__ import annotations

from typing import Literal, Self

import msgspec

from fleetcast.scoring.numbers import is_finite

# ok: read just now, or so recently that no call was due. stale: a call failed; the value is the
# last good one. missing: an answer without it, none in time, or no source configured. refused: AWS
# says no, and will again. not_offered: there is nothing to read. failed: anything else.
SignalStatus = Literal["ok", "stale", "missing", "refused", "not_offered", "failed"]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one signal; value and observed_at_s are None when there is no value.

    value: as of now if the status is ok, what counts instead if it is not_offered, and else only
    the last good one. observed_at_s: epoch seconds. error: why the status isn't ok.
    """

    value: float | None = None
    status: SignalStatus
    observed_at_s: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, value: float, *, observed_at_s: float) -> Self:
        """Record a value; one that is not a usable finite number is a failure instead."""
        if not is_finite(value):
            return cls.absent("failed", f"{value!r} is not a finite number")
        return cls(value=value, status="ok", observed_at_s=observed_at_s)

    @classmethod
    def absent(cls, status: SignalStatus, error: str) -> Self:
        """Record why there is no value."""
        return cls(status=status, error=error)

    @property
    def counted(self) -> float | None:
        """The value to score by: a last good value is none, for the truth may be worse by now."""
        return self.value if self.status in {"ok", "not_offered"} else None
