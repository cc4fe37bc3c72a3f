"""The addresses of an instance, made from its id: the same at each start, on each node.

Nobody hands them out, so two ids can get the same one. MAC addresses have 40 free bits: among 1,000
instances on one bridge two are the same with a probability of 5 in 10 million. Private addresses
of user-mode networking can't collide: each guest is alone in its network. This module is pure.
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Address, IPv4Network
from typing import Final

# User-mode networking. It must hold the metadata service's address: QEMU forwards only addresses
# of the guest's own network.
USER_NETWORK: Final = IPv4Network("169.254.0.0/16")
USER_GATEWAY: Final = IPv4Address("169.254.0.1")
USER_DNS: Final = IPv4Address("169.254.0.2")
METADATA_ADDRESS: Final = IPv4Address("169.254.169.254")

# Third bytes that guests don't get: the two that RFC 3927 reserves (gateway and DNS are in the
# first), and those where clouds have services of their own.
_KEPT_FREE: Final = frozenset({0, 169, 170, 255})
_GUEST_BYTES: Final = tuple(number for number in range(256) if number not in _KEPT_FREE)
# Locally administered, one station.
_MAC_FIRST_BYTE: Final = 0x02


def mac_address(instance_id: str) -> str:
    """Return its MAC address, e.g. "02:3f:9a:00:17:c4"."""
    return bytes([_MAC_FIRST_BYTE, *_digest(instance_id)[:5]]).hex(":")


def user_mode_address(instance_id: str) -> str:
    """Return its private address under user-mode networking, e.g. "169.254.12.34"."""
    third, fourth = _digest(instance_id)[5:7]
    # 1 to 254, and as many values for the third byte as guests may have.
    return f"169.254.{_GUEST_BYTES[third % len(_GUEST_BYTES)]}.{1 + fourth % 254}"


def _digest(instance_id: str) -> bytes:
    return hashlib.sha256(instance_id.encode()).digest()
