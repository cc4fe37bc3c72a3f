"""The entry of `fleetcast-agent`: says what to install where the agent's packages are absent."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; exits as fleetcast.agent.command.main does, with 1 if it can't be run."""
    try:
        from fleetcast.agent import command  # noqa: PLC0415 - its packages may be absent
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "fleetcast":
            raise  # a part of fleetcast itself: ours to mend
        sys.exit(
            f"fleetcast-agent: the Python package {error.name} is not installed; "
            "the agent needs: pip install 'fleetcast[agent]'"
        )
    command.main(prog_name="fleetcast-agent")


if __name__ == "__main__":
    main()
