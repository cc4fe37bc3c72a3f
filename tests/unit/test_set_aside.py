"""A node that fails again and again leaves for a while, says why, and comes back by itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fleetcast import messages
from fleetcast.messages import CLOCK_SKEW_ALLOWANCE_MS
from tests.agent_parts import (
    EIGHT_VCPU,
    NOW_MS,
    HeldUpDriver,
    a_launch,
    instance_id,
    unit_node,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.agent_parts import Delivered, UnitNode

_TOO_FAR_MS = NOW_MS + CLOCK_SKEW_ALLOWANCE_MS + 1


def _from_the_future(number: int) -> Delivered:
    return a_launch(
        number, launch=number, sent_at_ms=_TOO_FAR_MS, expires_at_ms=_TOO_FAR_MS + 1_000
    )


def _why_closed(node: UnitNode) -> str:
    return node.ledger.closed or ""


async def _fail_to_boot(node: UnitNode, driver: HeldUpDriver, *numbers: int) -> None:
    driver.failing.update(map(instance_id, numbers))
    for number in numbers:
        await node.launch(a_launch(number, launch=number))
        await node.guests.idle()


def _failing_driver(tmp_path: Path) -> HeldUpDriver:
    driver = HeldUpDriver(tmp_path / "guests")
    driver.may_boot.set()
    return driver


# --- boots ---------------------------------------------------------------------------------


async def test_three_failed_boots_in_a_row_set_a_node_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = _failing_driver(tmp_path)
    async with unit_node(tmp_path, driver=driver) as node:
        await _fail_to_boot(node, driver, 1, 2)
        assert _why_closed(node) == ""
        before = node.changes
        await _fail_to_boot(node, driver, 3)
        assert (
            _why_closed(node) == "set aside: 3 boots in a row failed, the last one: no such image"
        )
        assert node.changes > before
        assert node.ledger.free == EIGHT_VCPU
        late = a_launch(9, launch=9)
        await node.launch(late)
        assert late.rejected() == "full"
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.getMessage() for one in warnings] == ["set aside: taking no launches"]


async def test_it_comes_back_by_itself_and_counts_anew(tmp_path: Path) -> None:
    driver = _failing_driver(tmp_path)
    async with unit_node(tmp_path, driver=driver) as node:
        await _fail_to_boot(node, driver, 1, 2, 3)
        before = node.changes
        (come_back,) = node.timers
        come_back()
        assert _why_closed(node) == ""
        assert node.changes > before
        await _fail_to_boot(node, driver, 4, 5)
        assert _why_closed(node) == ""


async def test_a_boot_that_succeeds_in_between_counts(tmp_path: Path) -> None:
    driver = _failing_driver(tmp_path)
    async with unit_node(tmp_path, driver=driver) as node:
        await _fail_to_boot(node, driver, 1, 2)
        await node.launch(a_launch(3, launch=3))
        await node.guests.idle()
        await _fail_to_boot(node, driver, 4, 5)
        assert _why_closed(node) == ""


async def test_what_fails_while_it_is_aside_does_not_prolong_it(tmp_path: Path) -> None:
    driver = _failing_driver(tmp_path)
    async with unit_node(tmp_path, driver=driver) as node:
        await _fail_to_boot(node, driver, 1, 2, 3)
        for number in range(4, 10):
            await node.launch(_from_the_future(number))
        assert len(node.timers) == 1


async def test_another_reason_keeps_it_closed_when_it_comes_back(tmp_path: Path) -> None:
    driver = _failing_driver(tmp_path)
    async with unit_node(tmp_path, driver=driver) as node:
        await _fail_to_boot(node, driver, 1, 2, 3)
        node.ledger.close("stopping")
        node.timers.pop()()
        assert _why_closed(node) == "stopping"


# --- clocks --------------------------------------------------------------------------------


async def test_a_request_from_the_future_launches_nothing_and_says_by_how_much(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        request = _from_the_future(1)
        await node.launch(request)
        reply = request.launch_reply()
        assert isinstance(reply, messages.Rejected)
        assert reply.reason == "node_fault"
        assert "501 ms behind" in reply.message
        assert len(node.ledger) == 0


async def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        ahead = a_launch(1, launch=1, sent_at_ms=NOW_MS + CLOCK_SKEW_ALLOWANCE_MS)
        behind = a_launch(
            2, launch=2, sent_at_ms=NOW_MS - CLOCK_SKEW_ALLOWANCE_MS, expires_at_ms=NOW_MS + 1
        )
        await node.launch(ahead, behind)
        assert ahead.accepted() == (instance_id(1),)
        assert behind.accepted() == (instance_id(2),)


async def test_three_requests_from_the_future_in_a_row_set_a_node_aside(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(_from_the_future(1), _from_the_future(2))
        assert _why_closed(node) == ""
        await node.launch(_from_the_future(3))
        assert "501 ms behind" in _why_closed(node)


async def test_a_request_in_time_in_between_counts(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(_from_the_future(1), _from_the_future(2))
        await node.launch(a_launch(3, launch=3, sent_at_ms=NOW_MS))
        await node.launch(_from_the_future(4), _from_the_future(5))
        assert _why_closed(node) == ""


async def test_expired_requests_say_nothing_of_the_clock(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        for number in range(1, 6):
            await node.launch(
                a_launch(number, sent_at_ms=NOW_MS - 5_000, expires_at_ms=NOW_MS - 4_000)
            )
        assert _why_closed(node) == ""


def _expired(node: UnitNode, number: int) -> Delivered:
    now_ms = round(node.now_s * 1000)
    return a_launch(number, launch=number, sent_at_ms=now_ms - 6_000, expires_at_ms=now_ms - 5_000)


async def test_requests_that_have_always_expired_when_they_come_set_a_node_aside(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        for number in range(3):
            assert _why_closed(node) == ""
            await node.launch(_expired(node, number))
            node.now_s += 2
        assert "3 requests in a row had expired when they came" in _why_closed(node)


async def test_what_a_node_that_was_stopped_finds_expired_does_not_set_it_aside(
    tmp_path: Path,
) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(*(_expired(node, number) for number in range(20)))
        assert _why_closed(node) == ""


async def test_a_request_that_comes_in_time_ends_a_row_of_late_ones(tmp_path: Path) -> None:
    async with unit_node(tmp_path) as node:
        await node.launch(_expired(node, 1), _expired(node, 2))
        node.now_s += 2
        now_ms = round(node.now_s * 1000)
        await node.launch(a_launch(3, launch=3, sent_at_ms=now_ms, expires_at_ms=now_ms + 1_000))
        node.now_s += 2
        await node.launch(_expired(node, 4))
        assert _why_closed(node) == ""
