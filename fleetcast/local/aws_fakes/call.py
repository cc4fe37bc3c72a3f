"""One call as the fakes see it, and one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class Call:
    """A decoded request. region: the one that the request was signed for.

    instance_types: those that it asks about; empty when it names none.
    """

    action: str
    region: str
    parameters: Mapping[str, Any]
    instance_types: tuple[str, ...]

    @property
    def offset(self) -> int:
        """Where the page that is asked for begins. Raises ValueError for a token not ours."""
        return int(self.parameters.get("NextToken") or 0)


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
