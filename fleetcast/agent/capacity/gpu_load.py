"""How busy this host's GPUs are.

Those that the host's own driver has are asked for through NVML, NVIDIA's library, which the driver
brings. Those that guests are given the host can't look into: one that is a guest's counts as wholly
used, one that waits for a guest as idle.
"""

from __future__ import annotations

import logging
import statistics
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.capacity.ledger import Ledger

_log = logging.getLogger(__name__)


def load_nvml() -> Any:  # noqa: ANN401 - it has no annotations
    """Return NVIDIA's Python binding; a megabyte, so only hosts with such GPUs load it."""
    return import_module("pynvml")


def has_nvidia_driver() -> bool:
    """Say whether NVIDIA's driver is in this host's kernel."""
    return Path("/proc/driver/nvidia").is_dir()


class GpuLoad:
    """The host's GPUs: those for guests, which the ledger has, or its own.

    has_own: whether NVIDIA's driver has any.
    """

    def __init__(
        self, ledger: Ledger, *, has_own: bool, load: Callable[[], Any] = load_nvml
    ) -> None:
        self._ledger = ledger
        self._nvml = self._begun(load) if has_own else None

    def _begun(self, load: Callable[[], Any]) -> Any:  # noqa: ANN401 - it has no annotations
        nvml = load()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as problem:
            _log.warning("GPUs can't be measured", extra={"why": str(problem)})
            return None
        return nvml

    def utilization(self) -> float | None:
        """Return the mean over all GPUs in percent; None if there are none, or it isn't known."""
        total_n = self._ledger.total.gpus
        if total_n:
            assigned_n = sum(need.gpus for need in self._ledger.booked.values())
            return min(100.0 * assigned_n / total_n, 100.0)
        return self._own_utilization(self._nvml) if self._nvml else None

    def _own_utilization(self, nvml: Any) -> float | None:  # noqa: ANN401 - it has no annotations
        try:
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            percents = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
        except nvml.NVMLError as problem:
            # One that has fallen off the bus: what the others do is not all.
            _log.warning("GPUs can't be measured", extra={"why": str(problem)})
            return None
        return statistics.fmean(percents) if percents else None
