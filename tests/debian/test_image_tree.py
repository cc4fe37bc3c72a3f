"""The agent installed into a Debian tree that no systemd runs, run there, and taken off again."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.agent_parts import instance_id
from tests.agent_process import Requester
from tests.debian.debian_tree import PYTHON, chrooted, in_tree, make_tree, run
from tests.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The first time, all of Debian is fetched.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    made = make_tree(tmp_path)
    yield made
    shutil.rmtree(made)  # it is as large as a Debian


def _paths(tree: Path) -> set[str]:
    return set(run("find", tree, "-xdev", "-printf", "%P %y %m %u\n").splitlines())


def _agent(command: str, tree: Path, *options: str) -> str:
    return run(sys.executable, "-m", "fleetcast.agent", command, "--root", tree, *options)


async def test_an_image_is_installed_runs_its_agent_and_is_left_as_it_was(
    tree: Path, tmp_path: Path
) -> None:
    before = _paths(tree)
    async with NatsProcess(tmp_path) as server, await Requester.connect(server.url) as requester:
        who = ("--region", "us-east-1", "--nats", server.url, "--node", "n1")
        _agent("install", tree, "--python", PYTHON, "--driver", "simulated", *who)
        # What systemd does when an image first boots.
        in_tree(tree, "systemd-sysusers")
        in_tree(tree, "systemd-tmpfiles", "--create", "--prefix", "/var/lib/fleetcast")
        in_tree(tree, "systemd-tmpfiles", "--create", "--prefix", "/etc/fleetcast")
        unit = (tree / "etc/systemd/system/fleetcast-agent.service").read_text(encoding="utf-8")
        (started,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        as_its_user = ("setpriv", "--reuid=fleetcast", "--regid=fleetcast", "--init-groups")
        agent = await asyncio.create_subprocess_exec(
            *chrooted(tree, *as_its_user, *started.split()), stderr=asyncio.subprocess.PIPE
        )
        assert agent.stderr
        line = await agent.stderr.readuntil(b"\n")
        while b"agent ready" not in line:
            line = await agent.stderr.readuntil(b"\n")
        assert await requester.accepted(1) == (instance_id(1),)
        state = tree / "var/lib/fleetcast"
        assert state.stat().st_mode & 0o077 == 0
        assert (state / "journal.sqlite").stat().st_uid == state.stat().st_uid != 0

        agent.terminate()
        assert await asyncio.wait_for(agent.wait(), 30) == 0

    _agent("uninstall", tree)
    assert _paths(tree) == before
