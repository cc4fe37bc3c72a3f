"""Reads TOML texts, and finds the lines of their keys for errors about their values. Pure.

The reader of the standard library tells lines only of what is no TOML at all.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from typing import Any, Final

from fleetcast.errors import InvalidConfiguration

_NAME: Final = r"[\"']?([\w.-]+)[\"']?"
_TABLES_ITEM: Final = re.compile(rf"\s*\[\[\s*{_NAME}\s*\]\]")
_TABLE: Final = re.compile(rf"\s*\[\s*{_NAME}\s*\]")
_VALUE: Final = re.compile(rf"\s*{_NAME}\s*=")


def read_toml(content: bytes, *, source: str, expected: str) -> tuple[dict[str, Any], str]:
    """Return what a TOML file says, and its text, for `placed`.

    source: what the file is called. expected: lines that are right, for an error.
    Raises InvalidConfiguration for what is no TOML, with the line.
    """
    try:
        text = content.decode("utf-8-sig")  # some editors put a mark in front
        return tomllib.loads(text), text
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        wrong = f"is no TOML: not UTF-8 (at line {line})"
        raise InvalidConfiguration(source, wrong, expected=expected) from problem
    except tomllib.TOMLDecodeError as problem:
        raise InvalidConfiguration(source, f"is no TOML: {problem}", expected=expected) from problem
    except RecursionError:
        wrong = "is no TOML: nested too deep"
        raise InvalidConfiguration(source, wrong, expected=expected) from None


def placed(problem: InvalidConfiguration, text: str, *, source: str) -> InvalidConfiguration:
    """Return the same error with the place of its key in front. source: what the text is called."""
    line = line_of(text, problem.key)
    place = f"{source}, line {line}" if line else source
    return InvalidConfiguration(
        f"{place}: {problem.key}", problem.problem, expected=problem.expected
    )


def line_of(text: str, key: str) -> int | None:
    """Return the line, from 1, of a key such as ``image[2].sha256``; None if it isn't found.

    Of a key that is missing, or is inside a value, it is the line of what it is missing from. Of
    tables that stand in double brackets and shouldn't, it is the first one's.
    """
    table, found, found_path = "", None, ""
    items: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if item := _TABLES_ITEM.match(line):
            path = table = f"{item[1]}[{items[item[1]]}]"
            items[item[1]] += 1
        elif header := _TABLE.match(line):
            path = table = header[1]
        elif value := _VALUE.match(line):
            path = f"{table}.{value[1]}" if table else value[1]
        else:
            continue
        is_it = path in (key, f"{key}[0]")
        leads_there = is_it or key.startswith((f"{path}.", f"{path}["))
        if leads_there and len(path) > len(found_path):
            found, found_path = number, path
    return found
