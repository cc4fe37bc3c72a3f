"""The demo's story, whole: deployed by the real CDK, driven by boto3's EC2 client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from fleetcast.local.conditions import wait_until
from fleetcast.local.stack import LocalStack
from fleetcast.local.story import BETTER, WORSE, Story
from lambdas.fleet_table import FleetTable

if TYPE_CHECKING:
    from fleetcast.local.stack_file import StackFile
    from fleetcast.local.story import Step

# Stays, as the demo's does: a second run finds its asset and its synthesised app's caches.
DIRECTORY = Path("build/e2e").absolute()


def reconciled_nodes(stack: StackFile) -> set[str]:
    """Return the nodes of the better region that the scheduled reconcile has heard."""
    dynamodb = boto3.client(
        "dynamodb",
        endpoint_url=stack.aws_endpoint_url,
        aws_access_key_id=stack.access_key_id,
        aws_secret_access_key=stack.secret_access_key,
    )
    return {node.node for node in FleetTable(dynamodb, stack.tables["Fleet"]).nodes(BETTER)}


@pytest.mark.timeout(300)
def test_every_step_of_the_story_holds() -> None:
    told: list[Step] = []
    with LocalStack((BETTER, WORSE), directory=DIRECTORY) as stack:
        Story(stack, told.append).run()
        # It runs once a minute, and maybe has not yet since the last node came.
        nodes = {entry.node for entry in stack.describe().agents if entry.region == BETTER}
        assert wait_until(lambda: reconciled_nodes(stack.describe()) == nodes, 90)
    assert [f"{step.name}: {step.seen}" for step in told if not step.held] == []
    assert [step.name[0] for step in told] == list("abcdefghi")
    logs = (DIRECTORY / "log").glob("agent-*.log")
    assert [log.name for log in logs if "disconnected from NATS" in log.read_text()] == []
