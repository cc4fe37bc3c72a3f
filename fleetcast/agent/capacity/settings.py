"""The sections [capacity] and [gpus] of agent.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fleetcast.agent.setting_types import MOST

_FromOne = Annotated[
    int, msgspec.Meta(ge=1, le=MOST, description=f"a whole number from 1 to {MOST}")
]
_FromZero = Annotated[
    int, msgspec.Meta(ge=0, le=MOST, description=f"a whole number from 0 to {MOST}")
]
_MiB = Annotated[
    int, msgspec.Meta(ge=1, le=MOST, description=f"a whole number of MiB from 1 to {MOST}")
]
_ReservedMiB = Annotated[
    int, msgspec.Meta(ge=0, le=MOST, description=f"a whole number of MiB from 0 to {MOST}")
]
_GiB = Annotated[
    int, msgspec.Meta(ge=1, le=MOST, description=f"a whole number of GiB from 1 to {MOST}")
]
_ReservedGiB = Annotated[
    int, msgspec.Meta(ge=0, le=MOST, description=f"a whole number of GiB from 0 to {MOST}")
]
_Ratio = Annotated[float, msgspec.Meta(gt=0, le=64, description="a number above 0, up to 64")]


class CapacitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What instances may use of this host.

    vcpu, memory_mib, gpus, disk_gib: no more than that, however much the host has; with a driver
    whose guests are simulated: exactly that. vcpu_per_core: virtual CPUs for each physical core.
    reserve_…: kept for the host itself; reserve_memory_mib: None: a twentieth of the host's, and
    at least 1 GiB. root_disk_gib: booked for an instance that asks for no root disk of a size.
    """

    vcpu: _FromOne | None = None
    memory_mib: _MiB | None = None
    gpus: _FromZero | None = None
    disk_gib: _GiB | None = None
    vcpu_per_core: _Ratio = 1.0
    reserve_vcpu: _FromZero = 0
    reserve_memory_mib: _ReservedMiB | None = None
    reserve_disk_gib: _ReservedGiB = 5
    root_disk_gib: _GiB = 8

    def booked_root_disk_gib(self, *, is_simulated: bool) -> int:
        """Return what is booked for an instance that asks for nothing; 0: disks aren't booked.

        Simulated guests have none, so theirs are booked only if there is to be a limit.
        """
        return 0 if is_simulated and self.disk_gib is None else self.root_disk_gib


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPUs of this host guests may have.

    passthrough: give them, whole, to guests; they must be bound to vfio-pci. model: what they are,
    e.g. L4, where the host's PCI ID database doesn't know.
    """

    passthrough: bool = False
    model: Annotated[str, msgspec.Meta(min_length=1, description="a model's name")] | None = None
