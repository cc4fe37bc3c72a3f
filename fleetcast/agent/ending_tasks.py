"""Ends asyncio tasks that don't end by being cancelled once."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_CANCEL_AGAIN_S: Final = 0.1


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended.

    Once is not enough: nats-py swallows a cancellation that comes while it writes.
    """
    while unended := [task for task in tasks if not task.done()]:
        for task in unended:
            task.cancel()
        await asyncio.wait(unended, timeout=_CANCEL_AGAIN_S)


async def end_all_other_tasks() -> None:
    """Cancel every task of the loop but this one until all have ended.

    A connection that is closed while it reconnects leaves a task that swallows cancellations, and
    for that one `asyncio.run` would wait for ever: it cancels once.
    """
    await end_tasks(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
