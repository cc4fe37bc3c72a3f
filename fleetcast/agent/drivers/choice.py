"""Makes the driver that a node is configured for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fleetcast.agent.drivers.simulated import SimulatedDriver

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.drivers import Driver
    from fleetcast.agent.settings import AgentSettings


def make_driver(settings: AgentSettings, state_dir: Path) -> Driver:
    """Return the node's driver, which keeps what is its guests' below `state_dir`."""
    match settings.driver:
        case "simulated":
            return SimulatedDriver(state_dir / "guests", now_s=time.time)
