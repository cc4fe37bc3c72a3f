"""Typed configuration from plain mappings, with errors that name the key.

What TOML, JSON, an environment variable or the CDK's context holds becomes a msgspec Struct.
Strict: an unknown key is refused, for it is most often a misspelt one. This module is pure: it
reads no file and no environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from fleetcast.errors import InvalidConfiguration, InvalidInput

StructT = TypeVar("StructT", bound=msgspec.Struct)

_SHOWN_CHARACTERS = 60
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def read_struct(values: object, struct_type: type[StructT], *, key: str = "") -> StructT:
    """Make a struct of a mapping that came from outside.

    key: where the mapping stands, "" at the root. A field of type
    ``Annotated[…, msgspec.Meta(description=…)]`` says with its description what would be right.
    A check in the struct's ``__post_init__`` raises InvalidConfiguration with a key that is
    relative to the struct.
    Raises InvalidConfiguration with the whole key, e.g. ``regions[1].nats_url``.
    """
    if not isinstance(values, Mapping):
        raise InvalidConfiguration(
            key or "configuration", f"is {_shown(values)}", expected="a mapping"
        )
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct_type)}
    for name in values:
        if name not in fields:
            known = ", ".join(fields)
            raise InvalidConfiguration(
                _join(key, str(name)), "is not a known key", expected=f"one of {known}"
            )
    members: dict[str, object] = {}
    for name, field in fields.items():
        if name in values:
            members[field.name] = _read(values[name], field.type, key=_join(key, name))
        elif field.required:
            raise InvalidConfiguration(
                _join(key, name), "is missing", expected=_expected(field.type)
            )
    return _checked(struct_type, members, key=key)


def _checked(struct_type: type[StructT], members: dict[str, object], *, key: str) -> StructT:
    try:
        return struct_type(**members)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(
            _join(key, error.key), error.problem, expected=error.expected
        ) from error
    except InvalidInput as error:
        raise InvalidConfiguration(
            key or "configuration", str(error), expected=f"a valid {struct_type.__name__}"
        ) from error


def _read(value: object, kind: Any, *, key: str) -> Any:  # noqa: ANN401 - any annotation, any value
    """Read one value as the annotation `kind` says, going into structs, tuples and dicts."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    origin = get_origin(plain)
    if origin in (Union, UnionType):
        return None if value is None else _read(value, _without_none(plain), key=key)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return read_struct(value, plain, key=key)
    if origin is tuple and isinstance(value, list | tuple):
        item = get_args(plain)[0]
        return tuple(_read(each, item, key=f"{key}[{at}]") for at, each in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        name_kind, item = get_args(plain)
        places = {name: _join(key, str(name)) for name in value}
        return {
            _convert(name, name_kind, key=place): _read(value[name], item, key=place)
            for name, place in places.items()
        }
    return _convert(value, kind, key=key)


def _convert(value: object, kind: Any, *, key: str) -> Any:  # noqa: ANN401 - any annotation, any value
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfiguration(key, f"is {_shown(value)}", expected=_expected(kind)) from error


def _expected(kind: Any) -> str:  # noqa: ANN401 - any annotation
    """Say what an annotation allows: its description, else its type in plain words."""
    plain, *notes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    for note in notes:
        if isinstance(note, msgspec.Meta) and note.description:
            return note.description
    origin = get_origin(plain)
    if origin in (Union, UnionType):
        return _expected(_without_none(plain))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(plain))
    if origin is tuple:
        return "a list"
    if origin is dict or (isinstance(plain, type) and issubclass(plain, msgspec.Struct)):
        return "a mapping"
    return _WORDS.get(plain, str(plain))


def _without_none(union: Any) -> Any:  # noqa: ANN401 - any annotation
    """Return X of ``X | None``, the only union that configuration has."""
    (member,) = (member for member in get_args(union) if member is not NoneType)
    return member


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place and not key.startswith("[") else f"{place}{key}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
