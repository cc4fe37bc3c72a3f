"""One call as the fakes see it, and one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Refused(FleetcastError):
    """The service answers with an error instead."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A decoded request. region: the one that the request was signed for.

    instance_types: those that it asks about; empty when it names none. at_s: when it came, epoch
    seconds.
    """

    action: str
    region: str
    parameters: Mapping[str, Any]
    instance_types: tuple[str, ...]
    at_s: float

    @property
    def offset(self) -> int:
        """Where the page that is asked for begins. Raises ValueError for a token not ours."""
        return int(self.parameters.get("NextToken") or 0)

    def values_of(self, name: str) -> list[str]:
        """Return the values of a list, which EC2's protocol sends as `name.1`, `name.2`, …."""
        return [value for key, value in self.parameters.items() if key.startswith(f"{name}.")]

    def required(self, name: str) -> str:
        """Return a parameter. Raises Refused if the call lacks it."""
        value = self.parameters.get(name)
        if not value:
            raise Refused("MissingParameter", f"The request must contain the parameter {name}")
        return str(value)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back over HTTP."""

    status: int
    content_type: str
    body: bytes


def page_of(
    entries: Sequence[Any], call: Call, *, size: int, first_empty: bool
) -> tuple[Sequence[Any], str | None]:
    """Cut the page that the call asks for; the token of the next one, None after the last.

    first_empty: put an empty page before the others, as services that filter late do.
    """
    if first_empty:
        entries = [*([None] * size), *entries]
    page = [entry for entry in entries[call.offset : call.offset + size] if entry is not None]
    end = call.offset + size
    return page, (str(end) if end < len(entries) else None)
