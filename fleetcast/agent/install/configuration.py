"""The first agent.toml of a node, made of what `install` was told and what the host has."""

from __future__ import annotations

import json
import re
import socket
import tomllib
from typing import TYPE_CHECKING, Final

from fleetcast.agent.install.node_files import CREDENTIALS, STATE_DIR
from fleetcast.agent.settings import AgentSettings
from fleetcast.configuration import read_struct
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence


_ALL_TYPES: Final = 'serve = "all"  # that this host can hold; or: families = ["t3", "m8a"]'
_NO_REGIONS_IMAGES: Final = (
    "",
    "# The images that launches may name stand in /etc/fleetcast/images.toml, or for all nodes in:",
    "# [images]",
    '# region_catalogue = "https://images.example.com/images.toml"',
)


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
        f"families = {json.dumps([*families])}" if families else _ALL_TYPES,
        "",
        "[nats]",
        f"url = {json.dumps(nats_url)}",
        *([f"credentials_file = {json.dumps(CREDENTIALS)}"] if has_credentials else []),
        *(_NO_REGIONS_IMAGES if driver == "qemu" else []),
        *(["", "[qemu]", f"bridge = {json.dumps(bridge)}"] if bridge else []),
        "",
    ]
    text = "\n".join(lines)
    read_struct(tomllib.loads(text), AgentSettings).served_types(ec2_catalogue())
    return text


def node_name() -> str:
    """Return this host's name, as far as it can stand in a NATS subject."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0]) or "node"
