"""User-mode networking for QEMU, with the metadata service inside.

What QEMU 7.2 (libslirp 4.7) was seen to do: without `restrict`, a guest reaches every service on
the host's loopback, through the gateway's address or by packets to 127.0.0.1, the metadata
service and credentials of the cloud that the host itself may run in, and the host's network; no
option forbids that and leaves the internet. With `restrict`, all of it is refused, and what is
forwarded by name, here the metadata service, is still reached.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcast.agent.guest_data.addresses import (
    METADATA_ADDRESS,
    USER_DNS,
    USER_GATEWAY,
    USER_NETWORK,
    user_mode_address,
)

if TYPE_CHECKING:
    from fleetcast.agent.guest_data import InstanceFacts

_RELAY: Final = Path(__file__).with_name("metadata_relay.py")


def user_network(facts: InstanceFacts, socket: Path, *, netdev_id: str, internet: bool) -> str:
    """Return the value of QEMU's -netdev option for an instance.

    socket: where its metadata service listens. internet: also reach the internet, and with it all
    that the host reaches. QEMU must be allowed to start programs and to use loopback addresses.
    """
    # QEMU reads the command as a POSIX shell would, and starts it without one.
    relay = shlex.join([sys.executable, "-I", "-S", str(_RELAY), str(socket.absolute())])
    options = {
        "id": netdev_id,
        "ipv6": "off",
        "restrict": "off" if internet else "on",
        "net": str(USER_NETWORK),
        "host": str(USER_GATEWAY),
        "dns": str(USER_DNS),
        "dhcpstart": user_mode_address(facts.instance_id),
        "guestfwd": f"tcp:{METADATA_ADDRESS}:80-cmd:{relay}",
    }
    return ",".join(["user", *(f"{key}={_quoted(value)}" for key, value in options.items())])


def _quoted(value: str) -> str:
    """Double the commas: a single one would end the option."""
    return value.replace(",", ",,")
