"""The first agent.toml of a node, made of what `install` was told and what the host has."""

from __future__ import annotations

import json
import platform
import re
import socket
import tomllib
from typing import TYPE_CHECKING

from fleetcast.agent.install.node_files import CREDENTIALS, STATE_DIR
from fleetcast.agent.settings import AgentSettings
from fleetcast.configuration import read_struct
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence


def configuration(
    *,
    node: str,
    region: str,
    zone: str | None,
    nats_url: str,
    has_credentials: bool,
    driver: str,
    families: Sequence[str],
    bridge: str | None,
) -> str:
    """Return the text of an agent.toml. Raises InvalidConfiguration for what no agent takes."""
    lines = [
        "# Written by `fleetcast-agent install`, which never overwrites it.",
        f"node = {json.dumps(node)}",
        f"region = {json.dumps(region)}",
        *([f"zone = {json.dumps(zone)}"] if zone else []),
        f"state_dir = {json.dumps(STATE_DIR)}",
        f"driver = {json.dumps(driver)}",
        f"families = {json.dumps([*families] or list(usual_families()))}",
        "",
        "[nats]",
        f"url = {json.dumps(nats_url)}",
        *([f"credentials_file = {json.dumps(CREDENTIALS)}"] if has_credentials else []),
        *(["", "[qemu]", f"bridge = {json.dumps(bridge)}"] if bridge else []),
        "",
    ]
    text = "\n".join(lines)
    read_struct(tomllib.loads(text), AgentSettings).served_types(ec2_catalogue())
    return text


def usual_families() -> Sequence[str]:
    """Return the families that a host of this architecture serves when none are named."""
    return ("t4g", "m8g") if platform.machine() == "aarch64" else ("t3", "m8a")


def node_name() -> str:
    """Return this host's name, as far as it can stand in a NATS subject."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0]) or "node"
