"""ARCHITECTURE.md names, for every invariant, tests that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_TESTS: Final = Path(__file__).parents[1]
_ROWS: Final = re.findall(
    r"^\| (I\d+) \|.*\|(.*)\|$", (_TESTS.parent / "ARCHITECTURE.md").read_text(), re.MULTILINE
)


def test_every_invariant_has_its_row() -> None:
    assert [name for name, _ in _ROWS] == [f"I{number}" for number in range(1, 13)]


@pytest.mark.parametrize(("invariant", "held_by"), _ROWS)
def test_an_invariant_names_tests_that_exist_or_says_that_it_is_not_yet_held(
    invariant: str, held_by: str
) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", held_by)
    assert named or "Not yet held:" in held_by, f"{invariant} names no test"
    for path, test in named:
        code = (_TESTS / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {test}\(|^{test} = ", code, re.MULTILINE), test
