"""EC2's filters: which of many things a client wants to see. Pure; knows no property by name.

Filters are joined by AND, the values of one by OR. `*` stands for any text, `?` for any one
character, and a backslash before either (or before itself) takes it literally. Source: EC2 User
Guide, "Filter your resources".
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from fleetcast.errors import InvalidParameterValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")
# What a filter compares; a thing without the property has None or nothing there.
Property: TypeAlias = "Callable[[_T], Iterable[str | None]]"


class Filter(msgspec.Struct, frozen=True, rename="pascal"):
    """A filter as a client sends it."""

    name: str = ""
    values: tuple[str, ...] = ()


# `\\*` is a literal star; `[` means nothing to EC2 but opens a set in fnmatch.
_LITERAL: Final = re.compile(r"\\([*?\\])|(\[)")


def filter_test(
    filters: Sequence[Filter], property_named: Callable[[str], Property[_T] | None]
) -> Callable[[_T], bool]:
    """Return the test that tells whether all filters let a thing through.

    property_named: what the filter of a name compares, or None if there is no such filter.
    Raises InvalidParameterValue for a filter that isn't there, or without values.
    """
    tests = [_one_filter_test(each, property_named(each.name)) for each in filters]
    return lambda thing: all(test(thing) for test in tests)


def _one_filter_test(wanted: Filter, property_of: Property[_T] | None) -> Callable[[_T], bool]:
    if property_of is None:
        raise InvalidParameterValue(f"The filter '{wanted.name}' is invalid")
    if not wanted.values:
        raise InvalidParameterValue(f"The filter '{wanted.name}' has no values")
    matches = re.compile("|".join(map(_regular_expression, wanted.values))).match
    return lambda thing: any(value is not None and matches(value) for value in property_of(thing))


def _regular_expression(pattern: str) -> str:
    """Translate EC2's wildcards. fnmatch does the hard part: no pattern backtracks for ages."""
    return fnmatch.translate(_LITERAL.sub(lambda found: f"[{found[1] or found[2]}]", pattern))
