"""What waits, e.g. a boot for its image, keeps nobody from ending the instance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fleetcast.agent.drivers import BootFailed, Guest
from tests.agent_parts import HeldUpDriver, a_few_turns, a_launch, instance_id, unit_node
from tests.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_instance_whose_boot_never_ends_is_terminated(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await a_few_turns()
        assert driver.booting == {instance_id(1)}
        await node.owner_actions.terminate([instance_id(1)])
        await eventually(lambda: asyncio.sleep(0, node.state_of(1) == "terminated"))
        assert node.ledger.free == node.ledger.total
        assert not await driver.alive()


async def test_what_is_ended_twice_while_it_boots_is_ended_once(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_destroy.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await a_few_turns()
        await node.owner_actions.terminate([instance_id(1)])
        await node.owner_actions.terminate([instance_id(1)])
        await a_few_turns()
        assert node.state_of(1) == "shutting-down"
        driver.may_destroy.set()
        await eventually(lambda: asyncio.sleep(0, node.state_of(1) == "terminated"))


async def test_the_clean_up_after_a_failed_boot_is_not_cut_short(tmp_path: Path) -> None:
    class Failing(HeldUpDriver):
        async def boot(self, guest: Guest) -> None:
            self.booting.add(guest.instance_id)
            raise BootFailed("no such image")

    driver = Failing(tmp_path / "guests")
    driver.may_destroy.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await a_few_turns()
        terminating = asyncio.create_task(node.owner_actions.terminate([instance_id(1)]))
        await a_few_turns()
        driver.may_destroy.set()
        await terminating
        await eventually(lambda: asyncio.sleep(0, node.state_of(1) == "terminated"))


async def test_a_guest_that_ignores_that_it_is_to_stop_is_terminated(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.may_stop.clear()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.owner_actions.stop([instance_id(1)])
        await a_few_turns()
        await node.owner_actions.stop([instance_id(1)])  # said again, it goes on
        await a_few_turns()
        assert node.state_of(1) == "stopping"
        await node.owner_actions.terminate([instance_id(1)])
        await eventually(lambda: asyncio.sleep(0, node.state_of(1) == "terminated"))
        assert not await driver.alive()


async def test_an_instance_whose_restart_never_ends_is_terminated(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        driver.may_boot.clear()
        driver.booting.clear()
        following = asyncio.create_task(node.guests.keep_following_ends())
        driver.end(instance_id(1), "crashed")
        await eventually(lambda: asyncio.sleep(0, node.timers))
        node.timers.pop()()
        await eventually(lambda: asyncio.sleep(0, driver.booting))
        await node.owner_actions.terminate([instance_id(1)])
        await eventually(lambda: asyncio.sleep(0, node.state_of(1) == "terminated"))
        following.cancel()


async def test_what_fails_for_an_unforeseen_reason_is_tried_again(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    driver.indestructible.add(instance_id(1))
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await node.guests.idle()
        await node.owner_actions.terminate([instance_id(1)])
        await node.guests.idle()
        assert node.state_of(1) == "shutting-down"
        driver.indestructible.clear()
        node.timers.pop()()
        await node.guests.idle()
        assert node.state_of(1) == "terminated"


async def test_an_agent_that_ends_while_a_guest_boots_ends(tmp_path: Path) -> None:
    driver = HeldUpDriver(tmp_path / "guests")
    async with unit_node(tmp_path, driver=driver) as node:
        await node.launch(a_launch(1))
        await a_few_turns()
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=5)
        assert all(task.done() for task in others)
