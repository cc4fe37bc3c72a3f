"""Run the fakes on their own: `python -m fleetcast.local.aws_fakes --scenario FILE`."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from fleetcast.errors import InvalidConfiguration
from fleetcast.local.aws_fakes import AwsFakes, load_scenario


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

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with AwsFakes(lambda: load_scenario(scenario_path)) as fakes:
        print(f"AWS fakes answer at {fakes.url}", flush=True)  # noqa: T201 - a command's output
        if options.port_file is not None:
            # Renamed into place: a reader never sees half a number.
            draft: Path = options.port_file.with_suffix(".part")
            draft.write_text(fakes.url.rpartition(":")[2])
            draft.rename(options.port_file)
        stop.wait()


if __name__ == "__main__":
    main()
