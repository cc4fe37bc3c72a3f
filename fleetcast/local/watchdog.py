"""Kills process groups once whoever started them is gone, however that came about.

Run as a script of its own, so that it survives its parent's `kill -9`. Reads lines +PID (guard
this group) and -PID (it has ended) from standard input; when that closes, kills what is left.
Standard library only, nothing of fleetcast: it must start at once.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Guard until standard input closes."""
    guarded: set[int] = set()
    for line in sys.stdin:
        change = guarded.add if line.startswith("+") else guarded.discard
        change(int(line[1:]))
    for group in guarded:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
