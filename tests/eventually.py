"""Waiting for a condition with a deadline, inside a running event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_T = TypeVar("_T")
_POLL_S: Final = 0.01


async def eventually(
    probe: Callable[[], Awaitable[_T]],
    holds: Callable[[_T], bool] = bool,
    *,
    within_s: float = 15,
) -> _T:
    """Probe until what it returns holds, and return that. Fails with the last value otherwise."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        value = await probe()
        if holds(value):
            return value
        if loop.time() > deadline:
            raise AssertionError(f"not within {within_s} s; last seen: {value!r}")
        await asyncio.sleep(_POLL_S)
