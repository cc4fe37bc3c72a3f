"""How an agent's process ends."""

from __future__ import annotations

import asyncio

from fleetcast.agent.ending_tasks import end_all_other_tasks, end_tasks


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


async def test_what_a_library_leaves_running_does_not_keep_the_process_alive() -> None:
    swallowed = 0

    async def reconnect() -> None:
        nonlocal swallowed
        while swallowed < 2:  # one by closing the connection, one by `asyncio.run`
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()

    left = asyncio.create_task(reconnect())
    await asyncio.sleep(0)  # let it begin
    await end_all_other_tasks()
    assert left.cancelled()
    assert swallowed == 2
