"""The attack suite's fixture, and the line that each of its cases tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.chaos.world import World, a_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_LINES: Final[list[str]] = []


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path, _LINES) as made:
        yield made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what the cases have told."""
    if _LINES:
        terminalreporter.section("attack suite", sep="-")
        for line in _LINES:
            terminalreporter.write_line(line)
