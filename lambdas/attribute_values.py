"""Python values to DynamoDB attribute values and back.

boto3 has the same (boto3.dynamodb.types), but importing it costs the launch path all of boto3
and takes no floats; a contract test holds this module to it.
Imports the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


def encode_item(item: Mapping[str, object]) -> dict[str, AttributeValueTypeDef]:
    """Turn a mapping into a DynamoDB item. Errors as encode_value's."""
    return {name: encode_value(value) for name, value in item.items()}


def decode_item(item: Mapping[str, AttributeValueTypeDef]) -> dict[str, Any]:
    """Turn a DynamoDB item into a mapping. Errors as decode_value's."""
    return {name: decode_value(value) for name, value in item.items()}


def encode_value(value: object) -> AttributeValueTypeDef:
    """Turn None, bool, int, float, str, bytes, a sequence or a mapping into an attribute value.

    A float becomes its shortest exact decimal text, so that it reads back as the same float.
    Raises ValueError for NaN and infinities, which DynamoDB doesn't hold, and TypeError for any
    other type, DynamoDB's sets among them.
    """
    encoded: AttributeValueTypeDef
    match value:
        case None:
            encoded = {"NULL": True}
        case bool():  # before int, of which it is one
            encoded = {"BOOL": value}
        case int() | float():
            encoded = {"N": _digits(value)}
        case str():
            encoded = {"S": value}
        case bytes():
            encoded = {"B": value}
        case Mapping():
            encoded = {"M": encode_item(value)}
        case Sequence():
            encoded = {"L": [encode_value(entry) for entry in value]}
        case _:
            raise TypeError(f"no DynamoDB attribute value for {type(value).__name__}")
    return encoded


def decode_value(value: AttributeValueTypeDef) -> Any:  # noqa: ANN401 - a stored value may be any
    """Turn an attribute value into None, bool, int, float, str, bytes, list or dict.

    A number without a fraction decodes to int: DynamoDB stores 1.0 as 1. Raises TypeError for
    sets and for types that DynamoDB may yet add.
    """
    match cast("dict[str, Any]", value):
        case {"NULL": _}:
            return None
        case {"N": str(digits)}:
            return _number(digits)
        case {"S": content} | {"BOOL": content} | {"B": content}:
            return content
        case {"M": members}:
            return decode_item(members)
        case {"L": entries}:
            return [decode_value(entry) for entry in entries]
        case other:
            raise TypeError(f"no Python value for the DynamoDB attribute value {sorted(other)}")


def _digits(number: float) -> str:
    if not math.isfinite(number):
        raise ValueError(f"DynamoDB holds finite numbers only, not {number}")
    return repr(number)


def _number(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)
