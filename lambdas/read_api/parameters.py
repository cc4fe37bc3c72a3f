"""The query string of the read API, checked. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.errors import (
    InvalidParameterCombination,
    InvalidParameterValue,
    UnknownInstanceType,
    UnknownParameter,
)
from fleetcast.read_answers import GPU_REQUIRED, GPUS, INSTANCE_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetcast.instance_types import Catalogue

MAX_GPUS: Final = 1_000_000
_TRUTH: Final = {"true": True, "false": False}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. gpus: how many must be free, 0 for any."""

    instance_type: str | None = None
    gpus: int = 0
    gpu_required: bool = False


def read_parameters(
    query: Mapping[str, Sequence[str]], *, allowed: Sequence[str], instance_types: Catalogue
) -> Asked:
    """Read a query string, each name with all its values.

    allowed: the names that this path knows. Raises UnknownParameter, InvalidParameterValue, and
    InvalidParameterCombination for GPUs with a type that has none.
    """
    for name, values in query.items():
        if name not in allowed:
            raise UnknownParameter(name)
        if len(values) != 1:
            raise InvalidParameterValue(f"Parameter {name} must be given once.")
    given = {name: values[0] for name, values in query.items()}
    asked = Asked(
        instance_type=given.get(INSTANCE_TYPE),
        gpus=_count(GPUS, given.get(GPUS, "0")),
        gpu_required=_truth(GPU_REQUIRED, given.get(GPU_REQUIRED, "false")),
    )
    if asked.instance_type is not None:
        _check_type(asked, asked.instance_type, instance_types)
    return asked


def _check_type(asked: Asked, name: str, instance_types: Catalogue) -> None:
    try:
        instance_type = instance_types.lookup(name)
    except UnknownInstanceType as error:
        raise InvalidParameterValue(f"Invalid value '{name}' for {INSTANCE_TYPE}.") from error
    if (asked.gpus or asked.gpu_required) and not instance_type.gpus:
        raise InvalidParameterCombination(f"Instance type {name} has no GPUs.")


def _count(name: str, value: str) -> int:
    if value.isascii() and value.isdigit() and len(value) <= len(str(MAX_GPUS)):
        count = int(value)
        if count <= MAX_GPUS:
            return count
    raise InvalidParameterValue(
        f"Invalid value '{value}' for {name}: expected a whole number, 0 to {MAX_GPUS}."
    )


def _truth(name: str, value: str) -> bool:
    try:
        return _TRUTH[value]
    except KeyError:
        raise InvalidParameterValue(
            f"Invalid value '{value}' for {name}: expected true or false."
        ) from None
