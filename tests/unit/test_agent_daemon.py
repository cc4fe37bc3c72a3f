"""How an agent's process ends."""

from __future__ import annotations

import asyncio

from fleetcast.agent.daemon import end_tasks


async def test_a_task_that_swallows_its_first_cancellation_is_ended_all_the_same() -> None:
    swallowed = asyncio.Event()

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)  # let it begin
    await end_tasks(task)
    assert swallowed.is_set()
    assert task.cancelled()
