"""The shapes of EC2's service model: each reads itself from a form and writes itself as XML.

A shape is what ec2_model.json says about a parameter or a part of an answer. Nothing here knows
an action or a parameter by name, so that another action needs no code.
Imports the standard library, msgspec and the core only: a cold start pays for it.
"""

from __future__ import annotations

import base64
import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias, TypeVar
from xml.etree.ElementTree import Element, SubElement

import msgspec

from fleetcast.errors import InvalidParameterValue, MissingParameter, UnknownParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

# EC2 answers with at most 1,000 instances, and takes no longer lists either.
MAX_LIST_INDEX: Final = 1_000

_LIST_INDEX: Final = re.compile(r"[1-9][0-9]{0,3}")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_ILLEGAL_IN_XML: Final = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]",
)

_T = TypeVar("_T")


def legal_in_xml(text: str) -> str:
    """Replace the characters that no XML document can hold, not even escaped, by U+FFFD."""
    return _ILLEGAL_IN_XML.sub("\ufffd", text)


class Field(NamedTuple):
    """One field of a form: its name as it was sent, the parts of it still to be read, its text."""

    name: str
    path: tuple[str, ...]
    text: str


class Structure(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="structure"):
    """Named members. Keyed by wire name in requests and by member name in answers."""

    name: str = ""
    members: dict[str, AnyShape]
    required: tuple[str, ...] = ()

    def decode(self, fields: Sequence[Field], path: str = "") -> dict[str, object]:
        """Return the values of the members, by member name. path: where this one stands.

        Raises UnknownParameter, MissingParameter and InvalidParameterValue.
        """
        values: dict[str, object] = {}
        by_member = _by_first_part(fields)
        for wire_name, inner in by_member.items():
            member = self.members.get(wire_name)
            if member is None:
                raise UnknownParameter(inner[0].name)
            values[member.name] = member.decode(inner, _joined(path, wire_name))
        for wire_name in self.required:
            if wire_name not in by_member:
                raise MissingParameter(_joined(path, wire_name))
        return values

    def encode(self, element: Element, value: object) -> None:
        """Append the members to an element; one that is None is left out.

        Raises KeyError for a member that the model doesn't have, TypeError for a wrong type.
        """
        for member_name, inner in _expect(dict, value).items():
            member = self.members[member_name]
            if inner is not None:
                member.encode(SubElement(element, member.name), inner)


class ListOf(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="list"):
    """Any number of one shape; in a form ``Name.1``, ``Name.2``, and gaps are closed."""

    name: str = ""
    member: AnyShape

    def decode(self, fields: Sequence[Field], path: str) -> list[object]:
        """Return the elements in the order of their numbers."""
        by_index = {}
        for part, inner in _by_first_part(fields).items():
            if not _LIST_INDEX.fullmatch(part) or int(part) > MAX_LIST_INDEX:
                raise UnknownParameter(inner[0].name)
            by_index[int(part)] = self.member.decode(inner, _joined(path, part))
        return [element for _, element in sorted(by_index.items(), key=itemgetter(0))]

    def encode(self, element: Element, value: object) -> None:
        """Append one child for each element."""
        for inner in _expect(list, value):
            self.member.encode(SubElement(element, self.member.name), inner)


class Scalar(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A value that is one text, both in a form and in XML."""

    name: str = ""
    expected: ClassVar[str]

    def decode(self, fields: Sequence[Field], path: str) -> object:
        """Return the value of the one field that is left."""
        for field in fields:
            if field.path:
                raise UnknownParameter(field.name)
        try:
            return self._parse(fields[0].text)
        except ValueError as error:
            # The value itself is not repeated: it may be user data.
            raise InvalidParameterValue(
                f"Invalid value for {path}. It must be {self.expected}.",
            ) from error

    def encode(self, element: Element, value: object) -> None:
        """Write the value as the element's text."""
        element.text = legal_in_xml(self._format(value))

    def _parse(self, text: str) -> object:
        """Return the value that a text stands for; ValueError if it stands for none."""
        raise NotImplementedError

    def _format(self, value: object) -> str:
        """Return the text that stands for a value; TypeError if it is of another type."""
        raise NotImplementedError


class String(Scalar, frozen=True, tag="string"):
    """Text."""

    expected = "a text"

    def _parse(self, text: str) -> str:
        return text

    def _format(self, value: object) -> str:
        return _expect(str, value)


class Boolean(Scalar, frozen=True, tag="boolean"):
    """``true`` or ``false``."""

    expected = "true or false"

    def _parse(self, text: str) -> bool:
        if text.lower() not in {"true", "false"}:
            raise ValueError(self.expected)
        return text.lower() == "true"

    def _format(self, value: object) -> str:
        return "true" if _expect(bool, value) else "false"


class Integer(Scalar, frozen=True, tag="integer"):
    """A whole number of 32 bits."""

    expected = "an integer of 32 bits"
    bits: ClassVar[int] = 32

    def _parse(self, text: str) -> int:
        limit = 1 << (self.bits - 1)
        if not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
            raise ValueError(self.expected)
        return int(text)

    def _format(self, value: object) -> str:
        return str(_expect(int, value))


class Long(Integer, frozen=True, tag="long"):
    """A whole number of 64 bits."""

    expected = "an integer of 64 bits"
    bits = 64


class Double(Scalar, frozen=True, tag="double"):
    """A finite number."""

    expected = "a finite number"

    def _parse(self, text: str) -> float:
        if not math.isfinite(value := float(text)):
            raise ValueError(self.expected)
        return value

    def _format(self, value: object) -> str:
        return str(_expect(float, value))


class Float(Double, frozen=True, tag="float"):
    """A finite number."""


class Timestamp(Scalar, frozen=True, tag="timestamp"):
    """An instant, ISO 8601; EC2 writes it in UTC with milliseconds."""

    expected = "an ISO 8601 time"

    def _parse(self, text: str) -> datetime:
        instant = datetime.fromisoformat(text)
        return instant if instant.tzinfo else instant.replace(tzinfo=UTC)

    def _format(self, value: object) -> str:
        instant = _expect(datetime, value).astimezone(UTC)
        return instant.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


class Blob(Scalar, frozen=True, tag="blob"):
    """Bytes, as base64."""

    expected = "valid base64"

    def _parse(self, text: str) -> bytes:
        return base64.b64decode(text, validate=True)

    def _format(self, value: object) -> str:
        return base64.b64encode(_expect(bytes, value)).decode()


AnyShape: TypeAlias = (
    Structure | ListOf | String | Boolean | Integer | Long | Double | Float | Timestamp | Blob
)


def _by_first_part(fields: Sequence[Field]) -> dict[str, list[Field]]:
    """Group fields by the next part of their names."""
    groups: defaultdict[str, list[Field]] = defaultdict(list)
    for field in fields:
        if not field.path:
            raise UnknownParameter(field.name)
        groups[field.path[0]].append(field._replace(path=field.path[1:]))
    return groups


def _joined(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _expect(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} stands where the model has a {kind.__name__}")
    return value
