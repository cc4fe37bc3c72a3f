"""An instance as the tests of what instances are told know it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetcast.agent.guest_data import InstanceFacts

INSTANCE_ID: Final = "i-0123456789abcdef0"
PUBLIC_KEY: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA web"

_FACTS: Final = InstanceFacts(
    instance_id=INSTANCE_ID,
    reservation_id="r-0fedcba987654321f",
    launch_index=2,
    account_id="000000000000",
    instance_type="t3.micro",
    image_id="ami-0123456789abcdef0",
    region="eu-west-1",
    zone="eu-west-1b",
    mac="02:00:00:00:00:07",
    private_address="169.254.12.34",
    public_keys={"web": PUBLIC_KEY},
    user_data=b"#!/bin/sh\necho hello\n",
    tags={"Name": "first"},
)


def told_instance(**changes: Any) -> InstanceFacts:  # noqa: ANN401 - fields of many types
    """Return the facts of an instance, with these changed."""
    return msgspec.structs.replace(_FACTS, **changes)
