"""The NoCloud seed: a small ISO 9660 disk labelled "cidata" that tells cloud-init what it needs.

Source: cloud-init's documentation, NoCloud and network configuration version 2.
"""

from __future__ import annotations

import json
import os
import re
from io import BytesIO
from typing import TYPE_CHECKING, Final

import pycdlib
from pycdlib.pycdlibexception import PyCdlibException

from fleetcast.agent.drivers import BootFailed

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.guest_data import InstanceFacts

_LABEL: Final = "cidata"
# What JSON may hold raw and a YAML reader would refuse or fold into a space.
_NOT_IN_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def write_seed(path: Path, facts: InstanceFacts) -> None:
    """Write the seed of an instance, readable to its owner only; an older one is replaced.

    Raises BootFailed if it can't be written.
    """
    disk = _disk(
        {
            "meta-data": _as_yaml(_meta_data(facts)),
            "network-config": _as_yaml(_network_config(facts.mac)),
            # cloud-init takes no disk without this file for a seed.
            "user-data": facts.user_data or b"",
        }
    )
    unfinished = path.with_name(f"{path.name}.new")
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(disk)
        unfinished.replace(path)
    except OSError as problem:
        raise BootFailed(f"its seed can't be written: {problem.strerror}") from problem


def _meta_data(facts: InstanceFacts) -> dict[str, object]:
    return {
        "instance-id": facts.instance_id,
        "local-hostname": facts.hostname,
        "public-keys": list(facts.public_keys.values()),
        "region": facts.region,
        **({"availability-zone": facts.zone} if facts.zone else {}),
        "tags": facts.tags,
    }


def _network_config(mac: str) -> dict[str, object]:
    # Renamed, since not every distribution can configure a card that it knows by address only.
    card = {"match": {"macaddress": mac}, "set-name": "eth0", "dhcp4": True}
    return {"version": 2, "ethernets": {"eth0": card}}


def _as_yaml(value: dict[str, object]) -> bytes:
    """Return it as JSON that is YAML too, whatever the strings in it hold.

    Not all in ASCII: YAML readers don't join the two halves that JSON makes of an emoji.
    """
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def _disk(files: dict[str, bytes]) -> bytes:
    disk, image = pycdlib.PyCdlib(), BytesIO()
    try:
        disk.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=_LABEL)
        for number, (name, content) in enumerate(files.items()):
            disk.add_fp(
                BytesIO(content),
                len(content),
                f"/FILE{number}.;1",
                rr_name=name,
                joliet_path=f"/{name}",
            )
        disk.write_fp(image)
        disk.close()
    except PyCdlibException as problem:
        raise BootFailed(f"its seed can't be made: {problem}") from problem
    return image.getvalue()
