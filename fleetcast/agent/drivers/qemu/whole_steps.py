"""Steps that are done whole or not begun: a boot may be called off at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


async def to_its_end(step: Coroutine[Any, Any, _T]) -> _T:
    """Wait for the step, also when we are cancelled meanwhile.

    Else it would go on by itself: a file or a guest would come up unseen, after somebody has looked
    whether it is there.
    """
    task = asyncio.create_task(step)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
