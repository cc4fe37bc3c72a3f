"""A node that fails again and again takes no launches for a while, says why, and comes back.

Without it, the one node whose boots fail at once would always have room, and draw every launch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.capacity.ledger import Ledger

_log = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW: Final = 3
SET_ASIDE_S: Final = 60
# What came late for so long was not held up on its way once: the node's clock is ahead.
LATE_FOR_MS: Final = 3_000


class SetAside:
    """Counts what fails in a row and closes the ledger for it.

    call_later: calls a function after so many seconds, as an event loop does.
    capacity_changed: called when the node goes and when it comes back.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        call_later: Callable[[float, Callable[[], None]], object],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._call_later = call_later
        self._capacity_changed = capacity_changed
        self._failed_boots_n = 0
        self._clock_refusals_n = 0
        self._late_n = 0
        self._late_since_ms = 0

    def boot_failed(self, why: str) -> None:
        """Note that a guest could not be started."""
        self._failed_boots_n += 1
        if self._failed_boots_n >= MAX_FAILURES_IN_A_ROW:
            self._leave(f"{self._failed_boots_n} boots in a row failed, the last one: {why}")

    def boot_succeeded(self) -> None:
        """Note that a guest runs."""
        self._failed_boots_n = 0

    def clock_was_off(self, why: str) -> None:
        """Note that a request was refused for this node's clock."""
        self._clock_refusals_n += 1
        if self._clock_refusals_n >= MAX_FAILURES_IN_A_ROW:
            self._leave(f"{self._clock_refusals_n} requests in a row came from the future: {why}")

    def came_late(self, why: str, *, now_ms: int) -> None:
        """Note that a request had expired, by this node's clock, when it came."""
        if not self._late_n:
            self._late_since_ms = now_ms
        self._late_n += 1
        late_for_ms = now_ms - self._late_since_ms
        if self._late_n >= MAX_FAILURES_IN_A_ROW and late_for_ms >= LATE_FOR_MS:
            self._leave(f"{self._late_n} requests in a row had expired when they came: {why}")

    def clock_was_right(self) -> None:
        """Note that a request came when, by this node's clock, it could."""
        self._clock_refusals_n = self._late_n = 0

    def _leave(self, why: str) -> None:
        self._failed_boots_n = self._clock_refusals_n = self._late_n = 0
        if not self._ledger.close("set aside", why):
            return  # what was still on its way when it left; it comes back when it was to
        _log.warning("set aside: taking no launches", extra={"why": why, "for_s": SET_ASIDE_S})
        self._call_later(SET_ASIDE_S, self._come_back)
        self._capacity_changed()

    def _come_back(self) -> None:
        self._ledger.reopen("set aside")
        _log.info("no longer set aside")
        self._capacity_changed()
