"""python -m bench [NAME]: runs all benchmarks, or one."""

from __future__ import annotations

import asyncio
import sys

from bench import agent, dispatch, launch, storm, sweep

BENCHES = {
    "storm": storm.run,
    "dispatch": dispatch.run,
    "launch": launch.run,
    "sweep": sweep.run,
    "agent": agent.run,
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks named, or all; 2 for a name that isn't one."""
    for name in arguments or BENCHES:
        if name not in BENCHES:
            sys.stderr.write(f"no benchmark {name!r}; there are: {', '.join(BENCHES)}\n")
            return 2
    for name in arguments or BENCHES:
        asyncio.run(BENCHES[name]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
