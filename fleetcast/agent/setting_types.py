"""The kinds of values that several sections of agent.toml, and images.toml, have. Pure."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

# A service's working directory is nobody's choice, and no file's name holds a NUL.
AbsolutePath: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^/[^\x00-\x1f\x7f]*\Z",
        max_length=4_096,
        description='an absolute path, such as "/var/lib/fleetcast"',
    ),
]

# More than any host has, and few enough for sums of them to be sent.
MOST: Final = 1_000_000_000
