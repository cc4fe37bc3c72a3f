"""Where images and catalogues may come from. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, urlsplit

from fleetcast.errors import InvalidConfiguration

_EXPECTED: Final = "https://host/path or s3://bucket/key"


def check_url(url: str, *, key: str) -> None:
    """Refuse what is neither https:// nor s3://, and what holds a password.

    key: what an error names. The URL itself isn't repeated: it may hold a secret.
    Raises InvalidConfiguration.
    """
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0 and len(parts.path) > 1
    except ValueError as problem:
        raise InvalidConfiguration(key, f"is no URL: {problem}", expected=_EXPECTED) from None
    if any(one.isspace() or not one.isprintable() for one in url):
        # urlsplit drops some of them; the connection would refuse the others at each fetch.
        raise InvalidConfiguration(
            key, "has a space or a control character", expected=f"{_EXPECTED}; %20 for a space"
        )
    if parts.scheme not in {"https", "s3"}:
        scheme = parts.scheme or "no scheme"
        raise InvalidConfiguration(key, f"is a URL of {scheme}", expected=_EXPECTED)
    if parts.username is not None:
        raise InvalidConfiguration(key, "holds a user or a password", expected=_EXPECTED)
    if not has_place:
        raise InvalidConfiguration(key, "names no host or nothing on it", expected=_EXPECTED)


def shown_url(url: str) -> str:
    """Return a URL or a path for logs and errors: without its query, which signs it."""
    parts = urlsplit(url)
    return SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "").geturl()
