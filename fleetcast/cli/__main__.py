"""The entry of `fleetcast`: says what to install where the command line's packages are absent.

The wheel brings this command to nodes too, which have the agent's packages only.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exits as fleetcast.cli.command.main does, with 1 if it can't be run."""
    try:
        from fleetcast.cli import command  # noqa: PLC0415 - its packages may be absent
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "fleetcast":
            raise  # a part of fleetcast itself: ours to mend
        sys.exit(
            f"fleetcast: the Python package {error.name} is not installed; "
            "the command line needs: pip install 'fleetcast[cli]'"
        )
    command.main()


if __name__ == "__main__":
    main()
