"""Who a sender on a bridge is: the kernel's table of IPv4 neighbours.

Source: proc_net(5)'s /proc/net/arp; include/uapi/linux/if_arp.h for the flag.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

NEIGHBOURS: Final = Path("/proc/net/arp")
_COMPLETE: Final = 0x02
_COLUMNS: Final = 6


def mac_of(address: str, *, bridge: str, table: str) -> str | None:
    """Return the MAC address that an IPv4 address on a bridge has; None if the table has none.

    table: what NEIGHBOURS holds: address, type, flags, MAC, mask and device under a heading.
    """
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) != _COLUMNS:
            continue
        neighbour, _, flags, mac, _, device = columns
        if neighbour == address and device == bridge and int(flags, 16) & _COMPLETE:
            return mac.lower()
    return None
