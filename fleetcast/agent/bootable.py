"""Keeps a node that could boot nothing at all from being asked: others are there for that."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.capacity.ledger import Ledger

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0


class BootableWatch:
    """Closes the ledger as long as there is nothing to boot.

    lacks: says what is missing, or None; it takes no time.
    """

    def __init__(
        self,
        lacks: Callable[[], str | None],
        ledger: Ledger,
        *,
        capacity_changed: Callable[[], None],
    ) -> None:
        self._lacks = lacks
        self._ledger = ledger
        self._capacity_changed = capacity_changed
        self._lacked: str | None = None

    async def keep_looking(self) -> None:
        """Look for ever, once at once."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY_S)

    def look(self) -> None:
        """Look once."""
        lacked = self._lacks()
        if lacked == self._lacked:
            return
        self._lacked = lacked
        if lacked is None:
            self._ledger.reopen("nothing to boot")
            _log.info("there is something to boot: taking launches")
        else:
            self._ledger.close("nothing to boot", lacked)
            _log.warning("nothing to boot: taking no launches", extra={"why": lacked})
        self._capacity_changed()
