"""Whether this node takes launches, as its operators wish.

Owns the file `cordon.json`, so that a node that was cordoned is so too when its agent, or its host,
starts again. A closed node keeps what it has: instances run on, holds may be committed, what
crashes is started again. It takes no launch, and starts no instance that is stopped: for that it
has no capacity, which is what EC2 says of such a host.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.durable_files import sync_folder, write_durably
from fleetcast.messages import CordonState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from fleetcast.agent.capacity.ledger import Ledger

_log = logging.getLogger(__name__)


class CordonWish(msgspec.Struct, frozen=True, kw_only=True):
    """What operators wish of a node. stops: to drain it, what runs is stopped."""

    state: CordonState
    stops: bool = False


OPEN: Final = CordonWish(state="open")
CORDONED: Final = CordonWish(state="cordoned")


class Cordon:
    """The wish that holds now.

    launches_decided: waits until what was delivered by now is answered. capacity_changed: called
    when the node closes and when it opens.
    """

    def __init__(
        self,
        path: Path,
        *,
        ledger: Ledger,
        launches_decided: Callable[[], Awaitable[None]],
        capacity_changed: Callable[[], None],
    ) -> None:
        self._path = path
        self._ledger = ledger
        self._launches_decided = launches_decided
        self._capacity_changed = capacity_changed
        self._change = asyncio.Lock()
        self.is_draining = asyncio.Event()
        self.wish, why = _read(path)
        self._carry_out(self.wish, why)

    @property
    def closed(self) -> str | None:
        """Why the node takes no launches, for whatever reason; None: it does."""
        return self._ledger.closed

    async def set(self, wish: CordonWish, *, instead_of: CordonWish | None = None) -> str:
        """Let a wish hold from now on: once it has returned no launch is accepted against it.

        instead_of: only if this one holds until then.
        Returns why it could not be written down, or "": then a node that closes is closed until
        its agent is restarted, and one that was closed stays so.
        """
        async with self._change:
            if instead_of not in {None, self.wish}:
                return ""
            if wish.state != "open":
                self._carry_out(wish)
                await self._launches_decided()
            try:
                # In a thread: it waits for the disk.
                await asyncio.to_thread(_write, self._path, wish)
            except OSError as problem:
                why = f"{self._path} can't be written: {problem.strerror}"
                _log.exception("cordon not written down", extra={"state": wish.state})
                return why
            if wish.state == "open":
                self._carry_out(wish)
            return ""

    def _carry_out(self, wish: CordonWish, why: str = "") -> None:
        if wish != self.wish:
            _log.info("cordon changed", extra={"state": wish.state, "stops": wish.stops})
        self.wish = wish
        self._ledger.reopen("cordoned")
        self._ledger.reopen("draining")
        if wish.state != "open":
            self._ledger.close(wish.state, why)
        if wish.state == "draining":
            self.is_draining.set()
        else:
            self.is_draining.clear()
        self._capacity_changed()


def _read(path: Path) -> tuple[CordonWish, str]:
    """Return the wish that was written down, and what is wrong with it or ""."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CordonWish), ""
    except FileNotFoundError:
        return OPEN, ""
    except (OSError, msgspec.MsgspecError) as problem:
        # Whoever has cordoned it relies on it.
        why = f"{path} can't be read ({problem}); uncordon the node to take launches again"
        _log.error("cordoned: nobody knows what was wished", extra={"why": why})
        return CORDONED, why


def _write(path: Path, wish: CordonWish) -> None:
    """Make a wish durable. Raises OSError, and then the one before holds."""
    if wish.state == "open":
        path.unlink(missing_ok=True)  # it works on a full disk, too
        sync_folder(path.parent)
    else:
        write_durably(path, msgspec.json.encode(wish))
