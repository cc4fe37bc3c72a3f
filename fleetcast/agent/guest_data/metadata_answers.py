"""What the metadata service answers: version 2 of EC2's, whose every read needs a token. Pure.

Source: EC2 User Guide, "Use the Instance Metadata Service to access instance metadata".
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from fleetcast.agent.guest_data.metadata_tree import look_up, metadata_tree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetcast.agent.guest_data import InstanceFacts

# Programs ask for the one they were written for. All are answered from the same tree.
VERSIONS: Final = (
    *("1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01"),
    *("2008-09-01", "2009-04-04", "2011-01-01", "2011-05-01", "2012-01-12", "2014-02-25"),
    *("2014-11-05", "2015-10-20", "2016-04-19", "2016-06-30", "2016-09-02", "2018-03-28"),
    *("2018-08-17", "2018-09-24", "2019-10-01", "2020-10-27", "2021-01-03", "2021-03-23"),
    *("2021-07-15", "2022-09-24", "latest"),
)
MAX_TTL_S: Final = 21_600

_TOKEN_PATH: Final = "api/token"  # noqa: S105 - where tokens are made
_TOKEN: Final = "x-aws-ec2-metadata-token"  # noqa: S105 - a header's name
_TTL: Final = "x-aws-ec2-metadata-token-ttl-seconds"
_FORWARDED: Final = "x-forwarded-for"
_TTL_VALUE: Final = re.compile(r"[0-9]{1,5}")
_EXPIRY: Final = struct.Struct(">d")


class Answer(NamedTuple):
    """A response. headers: beside the length and the type of the body."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


class Tokens:
    """Makes and checks tokens. None is kept: a guest may ask for as many as it likes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, instance_id: str, *, expires_at_s: float) -> str:
        """Return a token for that instance, good until then."""
        expiry = _EXPIRY.pack(expires_at_s)
        return base64.urlsafe_b64encode(expiry + self._sign(instance_id, expiry)).decode()

    def holds(self, token: str, instance_id: str, *, now_s: float) -> bool:
        """Say whether the token was made for that instance and hasn't expired."""
        try:
            plain = base64.b64decode(token, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return False
        expiry, signature = plain[: _EXPIRY.size], plain[_EXPIRY.size :]
        # The signature first: what a stranger calls an expiry is not worth reading.
        if not hmac.compare_digest(signature, self._sign(instance_id, expiry)):
            return False
        (expires_at_s,) = _EXPIRY.unpack(expiry)
        return bool(now_s < expires_at_s)

    def _sign(self, instance_id: str, expiry: bytes) -> bytes:
        return hmac.digest(self._secret, instance_id.encode() + b"\0" + expiry, "sha256")


def answer(
    facts: InstanceFacts,
    tokens: Tokens,
    *,
    method: str,
    target: str,
    headers: Mapping[str, str],
    now_s: float,
) -> Answer:
    """Answer a request of that instance. headers: names in lower case. now_s: any steady clock."""
    version, _, path = unquote(target.partition("?")[0]).removeprefix("/").partition("/")
    asks_for_token = path == _TOKEN_PATH and version in VERSIONS
    if _FORWARDED in headers:
        return _fault(403)  # it came through a proxy, so perhaps from outside
    if method != ("PUT" if asks_for_token else "GET"):
        return _fault(405)
    if asks_for_token:
        return _new_token(facts, tokens, headers.get(_TTL, ""), now_s)
    if not tokens.holds(headers.get(_TOKEN, ""), facts.instance_id, now_s=now_s):
        return _fault(401)
    return _read(facts, version, path)


def _read(facts: InstanceFacts, version: str, path: str) -> Answer:
    if not version and not path:
        return Answer(200, "\n".join(VERSIONS).encode())
    found = look_up(metadata_tree(facts), path) if version in VERSIONS else None
    if found is None:
        return _fault(404)
    return Answer(200, found if isinstance(found, bytes) else found.encode())


def _new_token(facts: InstanceFacts, tokens: Tokens, ttl: str, now_s: float) -> Answer:
    if not _TTL_VALUE.fullmatch(ttl) or not 1 <= int(ttl) <= MAX_TTL_S:
        return _fault(400)
    token = tokens.make(facts.instance_id, expires_at_s=now_s + int(ttl))
    return Answer(200, token.encode(), {_TTL: ttl})


def _fault(status: int) -> Answer:
    return Answer(status, b"")
