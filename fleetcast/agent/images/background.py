"""Runs what blocks for long in a thread that nobody waits for at the end.

A pool's threads are joined when the process ends: an agent that is stopped would go on until its
download is complete. What is cut off here is done anew by the next agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


async def in_background(work: Callable[[], _T]) -> _T:
    """Return what work returns, or raise what it raises. Cancelled, it goes on by itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as problem:  # noqa: BLE001 - whoever waits gets it
            tell(partial(done.set_exception, problem))
        else:
            tell(partial(done.set_result, result))

    def tell(how: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if done.done() else how())

    threading.Thread(target=run, name="images", daemon=True).start()
    return await done
