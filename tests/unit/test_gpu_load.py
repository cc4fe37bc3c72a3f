"""How busy GPUs are: NVML's answers are made up here, since no GPU was there to ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fleetcast.agent.capacity.gpu_load import GpuLoad, load_nvml
from fleetcast.agent.capacity.ledger import Ledger
from fleetcast.capacity import Resources

_NO_GPUS = Resources(vcpu=8, memory_mib=32_768)
_FOUR = Resources(vcpu=8, memory_mib=32_768, gpus=4)
_ONE = Resources(vcpu=1, memory_mib=1_024, gpus=1)


class _SimulatedNvml:
    """NVML as a driver answers it that has GPUs which are so busy; None: one that has gone."""

    NVMLError = RuntimeError

    def __init__(self, *percents: int | None, has_driver: bool = True) -> None:
        self.percents = percents
        self.has_driver = has_driver

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self.has_driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the same
        return len(self.percents)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - the same
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802 - the same
        percent = self.percents[handle]
        if percent is None:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=percent, memory=0)


def _load(nvml: _SimulatedNvml, total: Resources = _NO_GPUS) -> GpuLoad:
    return GpuLoad(Ledger(total), has_own=True, load=lambda: nvml)


@pytest.mark.parametrize(
    ("percents", "mean"), [((30, 50), 40.0), ((0,), 0.0), ((100, None), None), ((), None)]
)
def test_the_hosts_own_gpus_are_averaged_if_all_can_be_asked(
    percents: tuple[int | None, ...], mean: float | None
) -> None:
    assert _load(_SimulatedNvml(*percents)).utilization() == mean


def test_without_a_driver_nothing_is_measured_and_nothing_fails() -> None:
    assert _load(_SimulatedNvml(has_driver=False)).utilization() is None
    assert GpuLoad(Ledger(_NO_GPUS), has_own=False).utilization() is None


def test_nvidias_own_binding_has_what_is_used_of_it_and_can_do_without_a_driver() -> None:
    assert all(hasattr(load_nvml(), name) for name in dir(_SimulatedNvml) if "nvml" in name.lower())
    percent = GpuLoad(Ledger(_NO_GPUS), has_own=True).utilization()
    assert percent is None or 0 <= percent <= 100


def test_gpus_for_guests_are_as_busy_as_they_are_given_away() -> None:
    ledger = Ledger(_FOUR)
    load = GpuLoad(ledger, has_own=False)
    assert load.utilization() == 0
    ledger.reserve("i-1", _ONE)
    assert load.utilization() == 25
    for number in range(2, 7):
        ledger.adopt(f"i-{number}", _ONE)
    assert load.utilization() == 100
