"""What a node has once the agent is installed: names, folders, and the files with their content."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetcast.agent.guest_processes import AGENT_UNIT

if TYPE_CHECKING:
    from fleetcast.agent.install.tree import Tree

USER: Final = "fleetcast"
CONFIG_DIR: Final = "/etc/fleetcast"
STATE_DIR: Final = "/var/lib/fleetcast"
RUN_DIR: Final = "/run/fleetcast"
CONFIG: Final = f"{CONFIG_DIR}/agent.toml"
CREDENTIALS: Final = f"{CONFIG_DIR}/node.creds"
SYSUSERS: Final = "/etc/sysusers.d/fleetcast.conf"
TMPFILES: Final = "/etc/tmpfiles.d/fleetcast.conf"
UNIT_DIR: Final = "/etc/systemd/system"
# An enabled unit is one that has this link; `systemctl enable` makes no other.
WANTED_BY: Final = f"{UNIT_DIR}/multi-user.target.wants/{AGENT_UNIT}"


class NodeFile(NamedTuple):
    """A file of the node. source: its name in files/."""

    name: str
    source: str


_FILES: Final = (
    NodeFile(SYSUSERS, "sysusers.conf"),
    NodeFile(TMPFILES, "tmpfiles.conf"),
    NodeFile(f"{UNIT_DIR}/fleetcast-guests.slice", "fleetcast-guests.slice"),
    NodeFile(f"{UNIT_DIR}/fleetcast-guest@.service", "fleetcast-guest@.service"),
    NodeFile(f"{UNIT_DIR}/{AGENT_UNIT}", AGENT_UNIT),
    NodeFile("/etc/polkit-1/rules.d/50-fleetcast.rules", "polkit.rules"),
    NodeFile("/etc/udev/rules.d/60-fleetcast-vfio.rules", "udev.rules"),
)
# What a node whose guests are on a bridge of the host's has beside them.
_BRIDGE_FILES: Final = (
    NodeFile(f"{UNIT_DIR}/fleetcast-guest@.service.d/bridge.conf", "guest-bridge.conf"),
    NodeFile(f"{UNIT_DIR}/{AGENT_UNIT}.d/bridge.conf", "agent-bridge.conf"),
)


def write_node_files(tree: Tree, *, python: str, has_bridge: bool) -> bool:
    """Write them; return whether systemd and udev have to read theirs anew.

    python: the interpreter that fleetcast is installed for, as the node will see it. has_bridge:
    guests are on a bridge of the host's.
    """
    has_news = False
    for file in (*_FILES, *(_BRIDGE_FILES if has_bridge else ())):
        content = _source(file.source).replace("@python@", python)
        if file.name == SYSUSERS and _has_kvm_group(tree):
            # Made by the udev package. Without it /dev/kvm is for everyone, or there is none.
            content += f"m {USER} kvm\n"
        has_news = tree.write(file.name, content.encode()) or has_news
    return tree.link(WANTED_BY, f"../{AGENT_UNIT}") or has_news


def _source(name: str) -> str:
    folder = resources.files("fleetcast.agent.install") / "files"
    return (folder / name).read_text(encoding="utf-8")


def _has_kvm_group(tree: Tree) -> bool:
    groups = (tree.read("/etc/group") or b"").decode(errors="replace")
    return any(line.startswith("kvm:") for line in groups.splitlines())
