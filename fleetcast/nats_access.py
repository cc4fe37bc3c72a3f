"""What both sides demand of the way to a region's NATS: its URL and its credentials file. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from fleetcast.errors import InvalidConfiguration

_LOOPBACK_HOSTS: Final = {"127.0.0.1", "::1", "localhost"}
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")
_CREDENTIALS_HOLD: Final = ("BEGIN NATS USER JWT", "BEGIN USER NKEY SEED")


def check_nats_url(url: str, *, key: str, credentials_key: str) -> None:
    """Refuse a URL that would carry launches in the clear, or that holds a secret.

    Allowed are tls://host:port, and nats://host:port on loopback. key: where the URL stands in
    the configuration. credentials_key: where credentials belong. Raises InvalidConfiguration.
    """
    if "@" in url:
        # The value stays out of the message: it holds a secret.
        raise InvalidConfiguration(key, "holds credentials", expected=f"them in {credentials_key}")
    expected = "tls://host:port (nats:// on loopback only)"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidConfiguration(key, "is no URL", expected=expected) from error
    more = parts.path.strip("/") or parts.query or parts.fragment
    # urlsplit passes over spaces in front, which the client would not.
    is_clean = url.startswith(("tls://", "nats://")) and host and _HOST.fullmatch(host)
    if not is_clean or port == 0 or more:
        raise InvalidConfiguration(key, f"is {url!r}", expected=expected)
    if parts.scheme != "tls" and host not in _LOOPBACK_HOSTS:
        raise InvalidConfiguration(key, f"{url!r} is not encrypted", expected=expected)


def is_credentials_file(text: str) -> bool:
    """Tell whether a text has the user JWT and the seed that `nsc generate creds` writes.

    Ask before nats-py reads it: in a text without them it goes on looking for ever.
    """
    return all(part in text for part in _CREDENTIALS_HOLD)
