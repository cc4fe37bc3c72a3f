"""How long something is, as people read it. Pure."""

from __future__ import annotations

import re
from typing import Final

from fleetcast.errors import InvalidInput

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_UNITS_S: Final = {"s": 1, "m": _MINUTE_S, "h": _HOUR_S, "d": _DAY_S}


def age_text(age_s: float) -> str:
    """Say an age (seconds) in its largest unit: 12s, 4m, 3h, 2d."""
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "m")):
        if abs(age_s) >= unit_s:
            return f"{age_s / unit_s:.0f}{unit}"
    return f"{age_s:.0f}s"


def parse_duration_s(text: str) -> int:
    """Return how many seconds 90s, 30m, 2h or 1d is. Raises InvalidInput."""
    matched = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if not matched:
        raise InvalidInput(f"{text!r} is no duration; expected e.g. 90s, 30m, 2h or 1d")
    return int(matched[1]) * _UNITS_S[matched[2]]
