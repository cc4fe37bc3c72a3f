"""What a real Linux guest finds of what it is told. Each boot takes some seconds."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from fleetcast.agent.guest_data.addresses import mac_address, user_mode_address
from fleetcast.agent.guest_data.metadata_service import MetadataServices
from fleetcast.agent.guest_data.seed import write_seed
from tests.booted_guest import booted_guest
from tests.told_instance import INSTANCE_ID, PUBLIC_KEY, told_instance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.host_packages

_ADDRESS = user_mode_address(INSTANCE_ID)
# The bytes behind `exit` are no text in any encoding.
_USER_DATA = b"#!/bin/sh\nsha256sum < /tmp/user-data\n%s\nexit 3\n\xff\xfe\x00'\"`$(:)\n"
_READ_ALL = b"""
for path in instance-id local-ipv4 public-keys/0/openssh-key tags/instance/Name; do
  imds "meta-data/$path"; echo
done
imds meta-data/tags/instance/other || echo no such tag
"""
# To the host's loopback: by the gateway's address, and by packets that no honest guest sends.
_TRY_LOOPBACK = b"""
echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
ip address del 127.0.0.1/8 dev lo
ip route add 169.254.0.1 dev eth0; ip route add 127.0.0.1 via 169.254.0.1 src %s
for host in 169.254.0.1 127.0.0.1; do
  echo hello | timeout 5 nc $host %d && echo reached
done
"""


@pytest.fixture
async def services() -> AsyncIterator[MetadataServices]:
    services = MetadataServices()
    yield services
    await services.close()


@pytest.mark.parametrize(
    ("with_seed", "source"),
    [(True, "the NoCloud seed"), (False, "the EC2 metadata service")],
)
async def test_a_guest_finds_its_data(
    services: MetadataServices, tmp_path: Path, *, with_seed: bool, source: str
) -> None:
    told = told_instance(
        mac=mac_address(INSTANCE_ID),
        private_address=_ADDRESS,
        tags={"Name": 'it\'s "$(reboot)" `reboot`', "a/b": "x\n", 'evil": "': "\\"},
        user_data=_USER_DATA % _READ_ALL,
    )
    folder = tmp_path / "a, b"  # a comma ends an option of QEMU's, if it isn't careful
    folder.mkdir()
    metadata = await services.serve(told, folder)
    seed = tmp_path / "seed.iso"
    write_seed(seed, told)
    async with booted_guest(told, metadata=metadata, seed=seed if with_seed else None) as guest:
        await guest.says("guest: ready")
    assert f"guest: address {_ADDRESS}/16" in guest.lines
    assert f"guest: data from {source}" in guest.lines
    assert f"guest: instance {INSTANCE_ID}, host {INSTANCE_ID}" in guest.lines
    assert told.user_data
    assert guest.between("guest: user data begins", "guest: user data ends with 3") == [
        f"{hashlib.sha256(told.user_data).hexdigest()}  -",
        INSTANCE_ID,
        _ADDRESS,
        PUBLIC_KEY,
        'it\'s "$(reboot)" `reboot`',
        "no such tag",
    ]


async def test_a_guest_reaches_nothing_on_the_hosts_loopback(
    services: MetadataServices, tmp_path: Path
) -> None:
    reached = asyncio.Event()
    listening = await asyncio.start_server(lambda *_: reached.set(), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    told = told_instance(user_data=_USER_DATA % (_TRY_LOOPBACK % (_ADDRESS.encode(), port)))
    metadata = await services.serve(told, tmp_path)
    async with booted_guest(told, metadata=metadata, seed=None) as guest:
        await guest.says("guest: ready")
    listening.close()
    said = guest.between("guest: user data begins", "guest: user data ends with 3")[1:]
    assert [re.sub(r":.*\(", " (", line) for line in said] == [
        "nc (169.254.0.1): Connection refused",
        "nc (127.0.0.1): Connection refused",
    ]
    assert not reached.is_set()
