"""Answers launches while guests take all the CPU there is: by a real-time priority.

Whatever weight the agent and its guests have, a thread that wakes up beside a busy one waits for
milliseconds, several times in a launch; with such a priority it doesn't (`make bench-agent`). The
kernel keeps a part of each second for all others, in case of a loop without end.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

_log = logging.getLogger(__name__)

_LOWEST: Final = os.sched_param(1)


def run_ahead_of_guests() -> None:
    """Give the threads that are there now, the event loop's and the journal's, precedence.

    What they begin later, other threads and processes, is as any other's. Without the right to do
    so (root, or RLIMIT_RTPRIO) all stays as it is.
    """
    try:
        for thread in threading.enumerate():
            if thread.native_id is not None:
                os.sched_setscheduler(
                    thread.native_id, os.SCHED_RR | os.SCHED_RESET_ON_FORK, _LOWEST
                )
    except OSError as problem:
        why = {"why": problem.strerror}
        _log.info("launches may be answered late while guests are busy", extra=why)
