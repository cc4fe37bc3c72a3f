"""The tree of an instance's metadata, as EC2's service shows it. Pure.

Source: EC2 User Guide, "Instance metadata categories" and "Instance identity documents". What
fleetcast has nothing for (IAM roles, spot notices, signatures, …) is not there, as in an EC2
instance without it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.agent.guest_data import InstanceFacts

# EC2 shows no tags of other names to instances: they would be no paths.
_TAG_KEY: Final = re.compile(r"(?!(\.|\.\.|_index)\Z)[A-Za-z0-9+\-=.,_:@]+")


@dataclass(frozen=True)
class Folder:
    """What stands below a path. titles: how a listing calls an entry, if not by its name."""

    entries: Mapping[str, Node]
    titles: Mapping[str, str] = field(default_factory=dict)

    def listing(self) -> str:
        """Return a line an entry; a folder's name ends with a slash."""
        return "\n".join(
            self.titles.get(name) or (f"{name}/" if isinstance(entry, Folder) else name)
            for name, entry in self.entries.items()
        )


Node: TypeAlias = Folder | str | bytes


def look_up(root: Folder, path: str) -> str | bytes | None:
    """Return the value at a path below the root, or a folder's listing; None: nothing is there."""
    node: Node = root
    names = path.split("/")
    if names[-1] == "":
        names.pop()  # a slash at the end: a folder is meant
        folder_is_meant = True
    else:
        folder_is_meant = False
    for name in names:
        if not isinstance(node, Folder) or name not in node.entries:
            return None
        node = node.entries[name]
    if isinstance(node, Folder):
        return node.listing()
    return None if folder_is_meant else node


def metadata_tree(facts: InstanceFacts) -> Folder:
    """Return what stands below /latest/."""
    entries: dict[str, Node] = {
        "dynamic": Folder({"instance-identity": Folder({"document": _identity_document(facts)})}),
        "meta-data": _meta_data(facts),
    }
    if facts.user_data is not None:
        entries["user-data"] = facts.user_data
    return Folder(entries, titles={name: name for name in entries})


def _meta_data(facts: InstanceFacts) -> Folder:
    entries: dict[str, Node | None] = {
        "ami-id": facts.image_id,
        "ami-launch-index": str(facts.launch_index),
        "hostname": facts.hostname,
        "instance-action": "none",
        "instance-id": facts.instance_id,
        "instance-life-cycle": "on-demand",
        "instance-type": facts.instance_type,
        "local-hostname": facts.hostname,
        "local-ipv4": facts.private_address,
        "mac": facts.mac,
        "network": Folder({"interfaces": Folder({"macs": Folder({facts.mac: _card(facts)})})}),
        "placement": _present({"availability-zone": facts.zone, "region": facts.region}),
        "public-keys": _public_keys(facts.public_keys) if facts.public_keys else None,
        "reservation-id": facts.reservation_id,
        "services": Folder({"domain": "amazonaws.com", "partition": "aws"}),
        "tags": _tags(facts.tags),
    }
    return _present(entries)


def _card(facts: InstanceFacts) -> Folder:
    return _present(
        {
            "device-number": "0",
            "local-hostname": facts.hostname,
            "local-ipv4s": facts.private_address,
            "mac": facts.mac,
            "owner-id": facts.account_id,
        }
    )


def _public_keys(public_keys: Mapping[str, str]) -> Folder:
    keys = {str(at): Folder({"openssh-key": line}) for at, line in enumerate(public_keys.values())}
    return Folder(keys, titles={str(at): f"{at}={name}" for at, name in enumerate(public_keys)})


def _tags(tags: Mapping[str, str]) -> Folder | None:
    shown = {key: value for key, value in tags.items() if _TAG_KEY.fullmatch(key)}
    return Folder({"instance": Folder(shown)}) if shown else None


def _identity_document(facts: InstanceFacts) -> str:
    """Return who the instance is, as JSON. Nobody signs it, so it proves nothing to others."""
    document = {
        "accountId": facts.account_id,
        "architecture": facts.architecture,
        "availabilityZone": facts.zone,
        "billingProducts": None,
        "devpayProductCodes": None,
        "imageId": facts.image_id,
        "instanceId": facts.instance_id,
        "instanceType": facts.instance_type,
        "kernelId": None,
        "marketplaceProductCodes": None,
        "privateIp": facts.private_address,
        "ramdiskId": None,
        "region": facts.region,
        "version": "2017-09-30",
    }
    return json.dumps(document, indent=2)


def _present(entries: Mapping[str, Node | None]) -> Folder:
    return Folder({name: entry for name, entry in entries.items() if entry is not None})
