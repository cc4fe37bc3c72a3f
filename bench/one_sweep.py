"""The process of one sweep: python -m bench.one_sweep record|measure FOLDER.

Imports little but the function, whose memory is measured. All is cold but the function's imports.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.recorded_calls import record_calls, replay_calls
from lambdas.score_regions import handler

CALL_LATENCY_S: Final = 0.1
_SWEEP_DEADLINE_S: Final = 50


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One cold sweep as its process measured it."""

    calls: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    failed: int


class _Context:
    def __init__(self, sweep_id: str) -> None:
        self.aws_request_id = sweep_id
        self._ends_s = time.monotonic() + _SWEEP_DEADLINE_S

    def get_remaining_time_in_millis(self) -> int:
        return int((self._ends_s - time.monotonic()) * 1000)


def record(folder: Path) -> None:
    """Sweep once, and keep what AWS answers."""
    record_calls(folder)
    context: Any = _Context("recorded")
    handler.handle({}, context)


def measure(folder: Path) -> Sweep:
    """Sweep once with the answers that were kept."""
    calls_n = replay_calls(folder, latency_s=CALL_LATENCY_S)
    context: Any = _Context("measured")
    began_s, cpu_began_s = time.monotonic(), time.process_time()
    summary = handler.handle({}, context)
    return Sweep(
        wall_s=time.monotonic() - began_s,
        cpu_s=time.process_time() - cpu_began_s,
        calls=calls_n(),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        failed=sum(summary["readings_n"].get(kind, 0) for kind in ("failed", "refused")),
    )


if __name__ == "__main__":
    act, of_folder = sys.argv[1:]
    if act == "record":
        record(Path(of_folder))
    else:
        print(json.dumps(asdict(measure(Path(of_folder)))))
