"""What an instance is told about itself.

A disk tells it that it finds (`seed`), and a service that it asks (`metadata_service`). Neither
knows how guests are run; drivers use both.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.guest_data.addresses import mac_address

if TYPE_CHECKING:
    from fleetcast.agent.drivers import Guest


class InstanceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that an instance may learn about itself.

    private_address: IPv4, None if nobody here knows it. architecture: as EC2 says it, x86_64 or
    arm64. public_keys: OpenSSH's lines by key name. user_data: as the guest shall see it, decoded.
    """

    instance_id: str
    reservation_id: str
    launch_index: int
    account_id: str
    instance_type: str
    image_id: str
    region: str
    zone: str | None
    mac: str
    private_address: str | None
    architecture: str = "x86_64"
    public_keys: dict[str, str]
    user_data: bytes | None
    tags: dict[str, str]

    def __repr__(self) -> str:
        """Leave out what the user gave in confidence: a repr ends up in logs."""
        return f"InstanceFacts({self.instance_id})"

    @property
    def hostname(self) -> str:
        """Its full name, after its id: unlike its address, that is known from the start.

        Source: EC2 User Guide, hostname types, "resource name".
        """
        domain = "ec2.internal" if self.region == "us-east-1" else f"{self.region}.compute.internal"
        return f"{self.instance_id}.{domain}"


def instance_facts(
    guest: Guest,
    *,
    region: str,
    zone: str | None,
    public_key: str | None,
    private_address: str | None,
) -> InstanceFacts:
    """Return what the guest may know.

    public_key: the line of guest.key_name. Raises BootFailed if its user data is no base64.
    """
    try:
        user_data = (
            base64.b64decode(guest.user_data_base64, validate=True)
            if guest.user_data_base64
            else None
        )
    except (binascii.Error, ValueError) as problem:
        raise BootFailed("its user data is no base64") from problem
    keys = {guest.key_name: public_key} if guest.key_name and public_key else {}
    return InstanceFacts(
        instance_id=guest.instance_id,
        reservation_id=guest.launch_id,
        launch_index=guest.launch_index,
        account_id=guest.account_id,
        instance_type=guest.instance_type,
        image_id=guest.image_id,
        region=region,
        zone=zone,
        mac=mac_address(guest.instance_id),
        private_address=private_address,
        public_keys=keys,
        user_data=user_data,
        tags=guest.tags,
    )
