"""Empties this node: closes it to launches, and waits until nothing uses it or stops what does.

It goes on until nothing is left, whoever watches, also when the agent has been restarted. What was
promised before is kept: a hold may be committed, and is stopped once it runs if that is wished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from fleetcast.agent.cordon import CORDONED
from fleetcast.agent.journal import JournalUnwritable

if TYPE_CHECKING:
    from fleetcast.agent.cordon import Cordon
    from fleetcast.agent.entries import Entry
    from fleetcast.agent.instances import Instances
    from fleetcast.agent.owner_actions import OwnerActions

_log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.5
# Source: EC2 API reference, StateReason.
_REASON: Final = ("Server.ScheduledStop", "The instance was stopped to drain its node")


class Drain:
    """The draining of one node."""

    def __init__(
        self, *, cordon: Cordon, instances: Instances, owner_actions: OwnerActions
    ) -> None:
        self.cordon = cordon
        self._instances = instances
        self._owner_actions = owner_actions

    def left(self) -> list[Entry]:
        """Return what uses the node: all that is neither stopped nor terminated."""
        return [one for one in self._instances if one.state not in {"stopped", "terminated"}]

    async def keep_draining(self) -> None:
        """Empty the node whenever it drains, until cancelled."""
        while True:
            await self.cordon.is_draining.wait()
            # A journal that can't be written has been reported; it is tried again.
            with contextlib.suppress(JournalUnwritable):
                await self.step()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def step(self) -> None:
        """Do what is due now. Raises JournalUnwritable."""
        wish, left = self.cordon.wish, self.left()
        if not left:
            _log.info("node drained")
            await self.cordon.set(CORDONED, instead_of=wish)
        elif wish.stops:
            running = [one.guest.instance_id for one in left if one.state == "running"]
            if running:
                await self._owner_actions.stop(running, reason=_REASON)
