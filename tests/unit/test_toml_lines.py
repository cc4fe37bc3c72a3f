"""Errors about a TOML file's values name the line."""

from __future__ import annotations

from typing import Final

import pytest

from fleetcast.agent.toml_lines import line_of

_TEXT: Final = """\
node = "n1"
"quoted" = 1

[nats]  # where it is
url = "tls://x"

[[image]]
id = "ami-12345678"
[[image]]
  id = "ami-87654321"
  sizes = [1, 2]
[[other.image]]
id = 1
"""


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("node", 1),
        ("quoted", 2),
        ("nats.url", 5),
        ("nats.credentials", 4),
        ("image[0].id", 8),
        ("image[1].id", 10),
        ("image[1].sha256", 9),
        ("image[1].sizes[1]", 11),
        ("other.image[0].id", 13),
        ("image", 7),
        ("image[2].id", None),
        ("zone", None),
        ("", None),
    ],
)
def test_a_key_is_found_where_it_stands_or_where_it_is_missing(key: str, line: int | None) -> None:
    assert line_of(_TEXT, key) == line
