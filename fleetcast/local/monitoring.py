"""What a NATS server itself says of who listens, whatever agents report of themselves."""

from __future__ import annotations

import urllib.request
from typing import Final

import msgspec

_TIMEOUT_S: Final = 5
# Of connections in one answer, above any local fleet's.
_LIMIT: Final = 4096


class _Connection(msgspec.Struct):
    name: str = ""
    subscriptions_list: list[str] = []


class _Connz(msgspec.Struct):
    connections: list[_Connection]


def subjects_by_connection(monitoring_url: str) -> dict[str, frozenset[str]]:
    """Return the subjects that each named connection of a server is subscribed to now.

    monitoring_url: http://127.0.0.1:port. Raises OSError when it doesn't answer.
    """
    url = f"{monitoring_url}/connz?subs=1&limit={_LIMIT}"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:  # noqa: S310 - http on loopback
        connz = msgspec.json.decode(reply.read(), type=_Connz)
    return {one.name: frozenset(one.subscriptions_list) for one in connz.connections if one.name}
