"""Waiting for what other processes bring about: a condition and a deadline, never a guess."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_S: Final = 0.02


def wait_until(
    condition: Callable[[], object], deadline_s: float, *, every_s: float = _POLL_S
) -> bool:
    """Wait until the condition is true; False if it isn't within `deadline_s` seconds.

    every_s: how often to look, for a look that costs.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(every_s)
    return True
