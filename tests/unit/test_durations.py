"""How long something is, as people read it."""

from __future__ import annotations

import pytest

from fleetcast.durations import age_text, parse_duration_s
from fleetcast.errors import InvalidInput


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (172_800, "2d"), (-90, "-2m")],
)
def test_an_age_is_said_in_its_largest_unit(age_s: float, text: str) -> None:
    assert age_text(age_s) == text


@pytest.mark.parametrize(
    ("text", "duration_s"), [("0s", 0), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86_400)]
)
def test_a_duration_is_read_with_its_unit(text: str, duration_s: int) -> None:
    assert parse_duration_s(text) == duration_s


@pytest.mark.parametrize("text", ["", "30", "m", "-1m", "1.5h", "30 m", "30M", "1m30s", "٣m"])
def test_what_is_no_duration_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected e"):
        parse_duration_s(text)
