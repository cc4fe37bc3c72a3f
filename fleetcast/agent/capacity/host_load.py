"""How busy this host is, sampled now and then: an answer never waits for a measurement."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger(__name__)

# The span that one CPU figure covers. Shorter ones jump, longer ones are old news.
SAMPLE_EVERY_S: Final = 15.0


class HostLoad:
    """The latest sample, in percent of the whole host; None before the first.

    folder: on the file system whose use is measured. gpu_utilization: measures GPUs; None if there
    are none.
    """

    def __init__(self, folder: Path, *, gpu_utilization: Callable[[], float | None]) -> None:
        self._folder = folder
        self._measure_gpus = gpu_utilization
        self._forget()

    def _forget(self) -> None:
        self.cpu_utilization: float | None = None
        self.memory_utilization: float | None = None
        self.disk_utilization: float | None = None
        self.gpu_utilization: float | None = None

    async def keep_sampling(self) -> None:
        """Sample for ever. A host that can't be measured still serves."""
        try:
            psutil.cpu_percent()  # begins the first span; what it returns says nothing
            while True:
                await asyncio.sleep(SAMPLE_EVERY_S)
                self.sample()
        except (psutil.Error, OSError) as problem:
            self._forget()
            _log.warning("this host's load can't be measured", extra={"why": repr(problem)})

    def sample(self) -> None:
        """Measure: CPU since the last time, all else now. Takes a tenth of a millisecond."""
        self.cpu_utilization = psutil.cpu_percent()
        self.memory_utilization = psutil.virtual_memory().percent
        self.disk_utilization = psutil.disk_usage(str(self._folder)).percent
        self.gpu_utilization = self._measure_gpus()
