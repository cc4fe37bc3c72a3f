"""How long something is, as people read it. Pure."""

from __future__ import annotations

from typing import Final

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400


def age_text(age_s: float) -> str:
    """Say an age (seconds) in its largest unit: 12s, 4m, 3h, 2d."""
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m")):
        if abs(age_s) >= unit_s:
            return f"{age_s / unit_s:.0f}{unit}"
    return f"{age_s:.0f}s"
