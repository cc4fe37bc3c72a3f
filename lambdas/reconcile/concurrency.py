"""Many acts side by side, none of which keeps another from being tried."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

_T = TypeVar("_T")
_ResultT = TypeVar("_ResultT")

# Also how many connections to DynamoDB and threads there are for it.
SIDE_BY_SIDE: Final = 32


async def for_each(
    those: Iterable[_T], act: Callable[[_T], Awaitable[_ResultT]]
) -> tuple[list[_ResultT], list[Exception]]:
    """Act on each, some at a time. Return the results of those that didn't fail, and the errors."""
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def in_turn(one: _T) -> _ResultT:
        async with turns:
            return await act(one)

    results: list[_ResultT] = []
    errors: list[Exception] = []
    for outcome in await asyncio.gather(*map(in_turn, those), return_exceptions=True):
        if isinstance(outcome, Exception):
            errors.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            results.append(outcome)
    return results, errors
