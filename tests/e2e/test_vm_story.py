"""A real guest's story, whole: from RunInstances at the deployed API to a QEMU process and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fleetcast.local.stack import LocalStack
from fleetcast.local.vm_story import REGION, VmStory

if TYPE_CHECKING:
    from fleetcast.local.story import Step

pytestmark = pytest.mark.host_packages

DIRECTORY = Path("build/e2e-vm").absolute()


@pytest.mark.timeout(600)
def test_every_step_of_a_real_guests_life_holds() -> None:
    told: list[Step] = []
    with LocalStack((REGION,), guests="qemu", directory=DIRECTORY) as stack:
        VmStory(stack, told.append).run()
    assert [f"{step.name}: {step.seen}" for step in told if not step.held] == []
    assert [step.name[0] for step in told] == list("abcde")
