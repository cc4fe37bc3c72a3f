"""Run the fakes on their own: `python -m fleetcast.local.aws_fakes --scenario FILE`."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from fleetcast.errors import InvalidConfiguration
from fleetcast.local.aws_fakes import AwsFakes, load_scenario

STOPPING = {signal.SIGTERM, signal.SIGINT}


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; the scenario file is read anew for each call."""
    parser = argparse.ArgumentParser(
        prog="python -m fleetcast.local.aws_fakes", description=__doc__
    )
    parser.add_argument("--scenario", type=Path, required=True, help="the scenario, a JSON file")
    parser.add_argument(
        "--port-file", type=Path, help="write the port to this file once it answers"
    )
    options = parser.parse_args()
    scenario_path: Path = options.scenario
    try:
        load_scenario(scenario_path)
    except (OSError, InvalidConfiguration) as error:
        parser.error(str(error))

    # Blocked and waited for, not handled: a handler could not safely wake another wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    with AwsFakes(lambda: load_scenario(scenario_path)) as fakes:
        if options.port_file is not None:
            # Renamed into place: a reader never sees half a number.
            draft: Path = options.port_file.with_suffix(".part")
            draft.write_text(fakes.url.rpartition(":")[2])
            draft.rename(options.port_file)
        print(f"AWS fakes answer at {fakes.url}", flush=True)  # noqa: T201 - a command's output
        signal.sigwait(STOPPING)


if __name__ == "__main__":
    main()
