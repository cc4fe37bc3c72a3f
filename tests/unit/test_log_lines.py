"""Log lines: each is one JSON object with what was said, whatever was said."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from fleetcast.agent.log_lines import JsonLines


def _line(message: str = "launched", **how: Any) -> dict[str, Any]:  # noqa: ANN401 - as LogRecord
    fields = how.pop("extra", {})
    record = logging.LogRecord("a.b", logging.INFO, "x.py", 1, message, how.pop("args", None), None)
    vars(record).update(fields, **how)
    line = JsonLines().format(record)
    assert "\n" not in line
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_a_line_says_when_where_what_and_with_which_fields() -> None:
    line = _line("launched", created=1_700_000_000.25, extra={"instance": "i-1", "n": [1, None]})
    assert line == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "a.b",
        "message": "launched",
        "instance": "i-1",
        "n": [1, None],
    }


def test_arguments_are_put_into_the_message() -> None:
    assert _line("%s of %d", args=("one", 2))["message"] == "one of 2"


def test_times_go_on_within_a_second_and_over_it() -> None:
    lines = JsonLines()
    times = []
    for created_s in (1.001, 1.999, 2.0, 1.5):
        record = logging.makeLogRecord({"created": created_s})
        times.append(json.loads(lines.format(record))["time"])
    assert times == [f"1970-01-01T00:00:0{one}Z" for one in ("1.001", "1.999", "2.000", "1.500")]


def test_a_traceback_is_a_field() -> None:
    try:
        int("why")
    except ValueError:
        line = _line("failed", exc_info=sys.exc_info())
    assert line["exc_info"].splitlines()[-1].startswith("ValueError: ")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"\xff", float("nan"), 2**70, "\udc80"])
def test_no_value_loses_the_line(value: object) -> None:
    assert _line(extra={"value": value})["message"] == "launched"
