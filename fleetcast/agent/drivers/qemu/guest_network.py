"""How a guest is connected, and what it is told about itself."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from fleetcast.agent.drivers import Addresses, BootFailed, ClientFault
from fleetcast.agent.drivers.qemu.command_line import NETDEV
from fleetcast.agent.guest_data import instance_facts
from fleetcast.agent.guest_data.addresses import METADATA_ADDRESS, mac_address, user_mode_address
from fleetcast.agent.guest_data.metadata_service import MetadataServices
from fleetcast.agent.guest_data.seed import write_seed
from fleetcast.agent.guest_data.user_network import user_network

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.drivers import Guest
    from fleetcast.agent.drivers.qemu.command_line import Architecture
    from fleetcast.agent.drivers.qemu.guest_folder import GuestFolder
    from fleetcast.agent.drivers.qemu.settings import QemuSettings
    from fleetcast.agent.guest_data import InstanceFacts
    from fleetcast.agent.key_pairs import KeyPairs

_log = logging.getLogger(__name__)

_METADATA_PORT: Final = 80


class GuestNetwork:
    """The network of a node's guests: each alone in one of its own, or all on the host's bridge.

    region, zone: where the node is. architecture: its guests'.
    """

    def __init__(
        self,
        settings: QemuSettings,
        *,
        key_pairs: KeyPairs,
        architecture: Architecture,
        region: str,
        zone: str | None,
    ) -> None:
        self._architecture = architecture
        self._bridge = settings.bridge
        self._bridge_helper = settings.bridge_helper
        self._internet = settings.internet
        self._key_pairs = key_pairs
        self._region = region
        self._zone = zone
        self._metadata = MetadataServices()

    def check(self, key_name: str | None) -> None:
        """Refuse a key pair that the node doesn't know. Raises ClientFault."""
        if key_name is not None:
            self._key_pairs.public_key(key_name)

    def addresses(self, instance_id: str) -> Addresses:
        """Return where the guest is; on a bridge, its IP address is somebody else's to give."""
        private_ip = None if self._bridge else user_mode_address(instance_id)
        return Addresses(private_ip=private_ip, mac=mac_address(instance_id))

    async def prepare(self, guest: Guest, folder: GuestFolder) -> str:
        """Write its seed, serve its metadata, and return what -netdev is. Raises BootFailed."""
        facts = self._facts(guest)
        await asyncio.to_thread(write_seed, folder.seed, facts)
        try:
            socket = await self._serve(facts, folder)
        except OSError as problem:
            raise BootFailed(f"its metadata can't be served: {problem.strerror}") from problem
        if self._bridge is None:
            return user_network(facts, socket, netdev_id=NETDEV, internet=self._internet)
        bridge, helper = (_quoted(value) for value in (self._bridge, self._bridge_helper))
        return f"bridge,id={NETDEV},br={bridge},helper={helper}"

    async def resume(self, guest: Guest, folder: GuestFolder) -> None:
        """Serve the metadata of a guest that another agent has begun; it runs on without, too."""
        try:
            await self._serve(self._facts(guest), folder)
        except (OSError, BootFailed) as problem:
            extra = {"instance": guest.instance_id, "why": str(problem)}
            _log.warning("metadata not served", extra=extra)

    async def forget(self, instance_id: str) -> None:
        """Serve its metadata no longer."""
        await self._metadata.forget(instance_id)

    async def close(self) -> None:
        """Serve nobody any longer."""
        await self._metadata.close()

    async def _serve(self, facts: InstanceFacts, folder: GuestFolder) -> Path:
        if self._bridge is not None:
            address = str(METADATA_ADDRESS)
            await self._metadata.serve_bridge(self._bridge, address, _METADATA_PORT)
        return await self._metadata.serve(facts, folder.path)

    def _facts(self, guest: Guest) -> InstanceFacts:
        facts = instance_facts(
            guest,
            region=self._region,
            zone=self._zone,
            public_key=self._public_key(guest),
            private_address=self.addresses(guest.instance_id).private_ip,
        )
        return msgspec.structs.replace(facts, architecture=self._architecture)

    def _public_key(self, guest: Guest) -> str | None:
        """Return its key; None also if it has been removed since the launch was accepted."""
        try:
            return self._key_pairs.public_key(guest.key_name) if guest.key_name else None
        except ClientFault as fault:
            extra = {"instance": guest.instance_id, "why": str(fault)}
            _log.warning("booted without its key pair", extra=extra)
            return None


def _quoted(value: str) -> str:
    """Double the commas: a single one would end the option."""
    return value.replace(",", ",,")
