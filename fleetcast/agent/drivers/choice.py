"""Makes the driver that a node is configured for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fleetcast.agent.drivers.simulated import SimulatedDriver
from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetcast.agent.drivers import Driver
    from fleetcast.agent.settings import AgentSettings


def make_driver(
    settings: AgentSettings, state_dir: Path, *, gpu_addresses: Sequence[str]
) -> Driver:
    """Return the node's driver, which keeps what is its guests' below `state_dir`.

    gpu_addresses: on PCI, of the GPUs that it may give to guests.
    Raises InvalidConfiguration for what this host can't run guests with.
    """
    try:
        match settings.driver:
            case "simulated":
                return SimulatedDriver(state_dir / "guests", now_s=time.time)
            case "qemu":
                return _qemu_driver(settings, state_dir, gpu_addresses)
    except OSError as problem:
        raise InvalidConfiguration(
            "state_dir",
            f"{problem.filename} can't be used: {problem.strerror}",
            expected="a folder that the agent may write to, and nobody else does",
        ) from problem


def _qemu_driver(settings: AgentSettings, state_dir: Path, gpu_addresses: Sequence[str]) -> Driver:
    # Here, so that nodes without real guests don't carry what those need.
    from fleetcast.agent.capacity.gpu_assignments import GpuAssignments  # noqa: PLC0415
    from fleetcast.agent.drivers.qemu.driver import QemuDriver  # noqa: PLC0415
    from fleetcast.agent.drivers.qemu.guest_network import GuestNetwork  # noqa: PLC0415
    from fleetcast.agent.drivers.qemu.host import find_host  # noqa: PLC0415
    from fleetcast.agent.guest_processes import guest_processes  # noqa: PLC0415
    from fleetcast.agent.images import Images  # noqa: PLC0415
    from fleetcast.agent.key_pairs import KeyPairs  # noqa: PLC0415

    keys = Path(settings.key_pairs_dir) if settings.key_pairs_dir else None
    host = find_host(settings.qemu, probe_memory=state_dir / "accelerator.json")
    return QemuDriver(
        state_dir / "guests",
        host=host,
        images=Images(settings.images, state_dir),
        network=GuestNetwork(
            settings.qemu,
            key_pairs=KeyPairs(keys),
            architecture=host.architecture,
            region=settings.region,
            zone=settings.zone,
        ),
        processes=guest_processes(),
        gpus=GpuAssignments(gpu_addresses),
        shutdown_timeout_s=settings.qemu.shutdown_timeout_s,
    )
