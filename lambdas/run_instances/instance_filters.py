"""DescribeInstances' filters: which of a client's instances it wants to see. Pure.

Filters are joined by AND, the values of one by OR. `*` stands for any text, `?` for any one
character, and a backslash before either (or before itself) takes it literally. Source: EC2 User
Guide, "Filter your resources".
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import InvalidParameterValue
from lambdas.records import STATE_CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lambdas.records import InstanceRecord


class Filter(msgspec.Struct, frozen=True, rename="pascal"):
    """A filter as a client sends it."""

    name: str = ""
    values: tuple[str, ...] = ()


_TAG_PREFIX: Final = "tag:"

# What a filter compares, by its name; an instance without the property has None or nothing there.
_PROPERTIES: Final[Mapping[str, Callable[[InstanceRecord], Iterable[str | None]]]] = {
    "architecture": lambda record: (record.architecture,),
    "availability-zone": lambda record: (record.availability_zone,),
    "client-token": lambda record: (record.client_token,),
    "host-id": lambda record: (record.node,),
    "image-id": lambda record: (record.image_id,),
    "instance-id": lambda record: (record.instance_id,),
    "instance-state-code": lambda record: (str(STATE_CODES[record.state]),),
    "instance-state-name": lambda record: (record.state,),
    "instance-type": lambda record: (record.instance_type,),
    "key-name": lambda record: (record.key_name,),
    "owner-id": lambda record: (record.account_id,),
    "reservation-id": lambda record: (record.reservation_id,),
    "tag-key": lambda record: record.tags,
}

# `\\*` is a literal star; `[` means nothing to EC2 but opens a set in fnmatch.
_LITERAL: Final = re.compile(r"\\([*?\\])|(\[)")


def filter_test(filters: Sequence[Filter]) -> Callable[[InstanceRecord], bool]:
    """Return the test that tells whether all filters let an instance through.

    Raises InvalidParameterValue for a filter that EC2 or fleetcast doesn't know, or without values.
    """
    tests = [_one_filter_test(each) for each in filters]
    return lambda record: all(test(record) for test in tests)


def _one_filter_test(wanted: Filter) -> Callable[[InstanceRecord], bool]:
    property_of = _property(wanted.name)
    if not wanted.values:
        raise InvalidParameterValue(f"The filter '{wanted.name}' has no values")
    matches = re.compile("|".join(map(_regular_expression, wanted.values))).match
    return lambda record: any(value is not None and matches(value) for value in property_of(record))


def _property(filter_name: str) -> Callable[[InstanceRecord], Iterable[str | None]]:
    if filter_name.startswith(_TAG_PREFIX):
        key = filter_name.removeprefix(_TAG_PREFIX)
        return lambda record: (record.tags.get(key),)
    try:
        return _PROPERTIES[filter_name]
    except KeyError:
        raise InvalidParameterValue(f"The filter '{filter_name}' is invalid") from None


def _regular_expression(pattern: str) -> str:
    """Translate EC2's wildcards. fnmatch does the hard part: no pattern backtracks for ages."""
    return fnmatch.translate(_LITERAL.sub(lambda found: f"[{found[1] or found[2]}]", pattern))
