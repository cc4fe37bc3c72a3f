"""The first agent.toml of a node, made of what `install` was told and what the host has."""

from __future__ import annotations

import json
import re
import socket
import tomllib
from typing import TYPE_CHECKING, Final

import psutil

from fleetcast.agent.settings import AgentSettings
from fleetcast.configuration import read_struct
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIB: Final = 1024**2
# What the host itself needs: a tenth, and no less than this.
_HOST_MEMORY_MIB: Final = 1_024


def configuration(
    *,
    node: str,
    region: str,
    zone: str | None,
    nats_url: str,
    credentials: str | None,
    driver: str,
    families: Sequence[str],
    state_dir: str,
) -> str:
    """Return the text of an agent.toml. Raises InvalidConfiguration for what no agent takes."""
    lines = [
        "# Written by `fleetcast-agent install`, which never overwrites it.",
        f"node = {json.dumps(node)}",
        f"region = {json.dumps(region)}",
        *([f"zone = {json.dumps(zone)}"] if zone else []),
        f"state_dir = {json.dumps(state_dir)}",
        f"driver = {json.dumps(driver)}",
        f"families = {json.dumps(list(families))}",
        "",
        "[nats]",
        f"url = {json.dumps(nats_url)}",
        *([f"credentials_file = {json.dumps(credentials)}"] if credentials else []),
        "",
        "[capacity]",
        f"vcpu = {psutil.cpu_count(logical=False) or psutil.cpu_count() or 1}",
        f"memory_mib = {memory_for_guests_mib(psutil.virtual_memory().total // _MIB)}",
        "",
    ]
    text = "\n".join(lines)
    read_struct(tomllib.loads(text), AgentSettings).served_types(ec2_catalogue())
    return text


def memory_for_guests_mib(total_mib: int) -> int:
    """Return what guests may have of a host's memory, at least 1 MiB."""
    return max(1, total_mib - max(_HOST_MEMORY_MIB, total_mib // 10))


def node_name() -> str:
    """Return this host's name, as far as it can stand in a NATS subject."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0]) or "node"
