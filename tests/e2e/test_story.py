"""The demo's story, whole: deployed by the real CDK, driven by boto3's EC2 client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetcast.local.stack import LocalStack
from fleetcast.local.story import BETTER, WORSE, Story

if TYPE_CHECKING:
    from fleetcast.local.story import Step

# Stays, as the demo's does: a second run finds its asset and its synthesised app's caches.
DIRECTORY = Path("build/e2e").absolute()


@pytest.mark.timeout(300)
def test_every_step_of_the_story_holds() -> None:
    told: list[Step] = []
    with LocalStack((BETTER, WORSE), directory=DIRECTORY) as stack:
        Story(stack, told.append).run()
    assert [f"{step.name}: {step.seen}" for step in told if not step.held] == []
    assert [step.name[0] for step in told] == list("abcdefghi")
    logs = (DIRECTORY / "log").glob("agent-*.log")
    assert [log.name for log in logs if "disconnected from NATS" in log.read_text()] == []
