"""How long something is, as people read it."""

from __future__ import annotations

import pytest

from fleetcast.durations import age_text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (172_800, "2d"), (-90, "-2m")],
)
def test_an_age_is_said_in_its_largest_unit(age_s: float, text: str) -> None:
    assert age_text(age_s) == text
