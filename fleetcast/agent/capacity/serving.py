"""Which instance types a node serves: of those that are configured, what its host could ever hold.

A type that needs what the host lacks is never offered, by no subject and in no list. A host that
is full for now is another matter: that is the ledger's.
"""

from __future__ import annotations

import logging
import platform
from collections import Counter
from typing import TYPE_CHECKING, Final

from fleetcast.agent.capacity.served_types import ServedTypes
from fleetcast.capacity import resources_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.agent.capacity.gpus import GpuPool
    from fleetcast.agent.drivers import Driver
    from fleetcast.agent.settings import AgentSettings
    from fleetcast.capacity import Resources
    from fleetcast.instance_types import Catalogue, InstanceType

_log = logging.getLogger(__name__)

_EC2_ARCHITECTURES: Final = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "arm64"}


def types_to_serve(
    settings: AgentSettings,
    ec2_types: Catalogue,
    *,
    total: Resources,
    gpus: GpuPool,
    driver: Driver,
) -> ServedTypes:
    """Return what the node serves, and log what it doesn't, and why.

    total: what all its instances together may use. Raises InvalidConfiguration for a family or type
    that nobody knows.
    """
    configured = settings.served_types(ec2_types)
    architecture = settings.architecture or host_architecture()
    # Nothing runs in simulated guests, so those are of any architecture, unless one is asked for.
    is_any = settings.is_simulated and not (settings.architecture or settings.serve)
    reasons: dict[str, str] = {}
    for name, instance_type in configured.items():
        if not is_any and architecture not in instance_type.architectures:
            reasons[name] = "another architecture"
        elif not settings.is_simulated and instance_type.has_accelerators:
            reasons[name] = "accelerators"
        elif not settings.is_simulated and instance_type.gpus and not gpus.serves(instance_type):
            reasons[name] = "another GPU"
        else:
            reasons[name] = _too_large(instance_type, total)
    _tell(reasons)
    served = {name: one for name, one in configured.items() if not reasons[name]}
    return ServedTypes(
        served,
        overhead_mib=driver.overhead_mib,
        root_disk_gib=settings.capacity.booked_root_disk_gib(is_simulated=settings.is_simulated),
    )


def host_architecture() -> str:
    """Return this host's architecture as EC2 names it."""
    machine = platform.machine()
    return _EC2_ARCHITECTURES.get(machine, machine)


def _too_large(instance_type: InstanceType, total: Resources) -> str:
    """Say what there will never be enough of; "" if there may be. Disks can be cleared."""
    need = resources_of(instance_type)
    if need.vcpu > total.vcpu:
        return "more vCPUs"
    if need.memory_mib > total.memory_mib:
        return "more memory"
    return "more GPUs" if need.gpus > total.gpus else ""


def _tell(reasons: Mapping[str, str]) -> None:
    left_out = Counter(reason for reason in reasons.values() if reason)
    if not left_out:
        return
    level = logging.INFO if len(reasons) > left_out.total() else logging.WARNING
    _log.log(
        level,
        "types not served for what this host lacks",
        extra={"by_reason": dict(left_out), "served": len(reasons) - left_out.total()},
    )
