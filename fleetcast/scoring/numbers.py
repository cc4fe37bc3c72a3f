"""Which numbers can be calculated with."""

from __future__ import annotations

from fleetcast.errors import InvalidSignal

UNUSABLY_LARGE = 1e100  # as good as infinite: beyond it, sums and products could overflow


def is_finite(value: object) -> bool:
    """Tell whether a value is a number that is neither NaN, infinite nor unusably large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < UNUSABLY_LARGE  # NaN is not


def require_finite(name: str, value: float) -> float:
    """Return a number that can be calculated with. Raises InvalidSignal, with the name."""
    if not is_finite(value):
        raise InvalidSignal(f"{name} is {value!r}; expected a finite number")
    return value
