"""The way to the region's NATS: TLS, credentials, permissions, and whether clocks agree.

A request to launch must never reach the doctor, which would not answer it: the launch subjects
that it tries are of an instance size that nobody launches.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import socket
import ssl
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import nats.errors
from nkeys import NkeysError  # type: ignore[import-untyped] # it has no annotations

from fleetcast.agent.doctor.finding import fail, ok, warn
from fleetcast.agent.install.service_user import agents_user
from fleetcast.agent.nats_client import AgentClient
from fleetcast.agent.nats_troubles import close_in_time, told
from fleetcast.nats_access import is_credentials_file
from fleetcast.subjects import (
    LAUNCH_QUEUE_GROUP,
    launch_subject,
    node_subscription,
    region_subscription,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleetcast.agent.doctor.finding import Finding
    from fleetcast.agent.settings import AgentSettings, NatsSettings

_DEFAULT_PORT: Final = 4222
_WITHIN_S: Final = 5.0
# A user who may not ask gets no answer.
_TIME_WITHIN_S: Final = 2.0
_LITTLE_TIME_DAYS: Final = 14
_DAY_S: Final = 86_400
# Every server answers this to every user, with its own time; it has no other way to tell that.
_WHO_AM_I: Final = "$SYS.REQ.USER.INFO"
_NOBODYS_SIZE: Final = "fleetcast-doctor"
# What a request's expiry allows for: past that, requests count as expired or live too long.
_SKEW_ALLOWED_MS: Final = 500
_NEW_CREDENTIALS: Final = "issue new ones, e.g. nsc generate creds"
_OPEN_TO_OTHERS: Final = 0o077


def check_credentials(settings: NatsSettings, now_s: float) -> Finding | None:
    """Look at the credentials file; None without one."""
    if settings.credentials_file is None:
        return None
    check, path = "credentials", Path(settings.credentials_file)
    user = agents_user().pw_name
    try:
        text, mode = path.read_text(encoding="utf-8", errors="replace"), path.stat().st_mode
    except OSError as problem:
        mend = f"put them there: install -m 600 -o {user} node.creds {path}"
        return fail(check, f"{path} can't be read: {problem.strerror}", mend)
    if not is_credentials_file(text):
        return fail(check, f"{path} holds no user JWT and seed", _NEW_CREDENTIALS)
    if mode & _OPEN_TO_OTHERS:
        return warn(check, f"others can read {path}", f"chmod 600 {path}; chown {user} {path}")
    expires_at_s = _expiry_of(text)
    if expires_at_s is None:
        return ok(check, f"{path}, without an end")
    return _with_time_left(
        check, f"{path} is a credentials file", expires_at_s - now_s, _NEW_CREDENTIALS
    )


def check_tls(settings: NatsSettings, now_s: float) -> Finding | None:
    """Shake hands as the agent does, and look at the certificate; None without TLS."""
    url = urlsplit(settings.url)
    if url.scheme != "tls" or url.hostname is None:
        return None
    check = "TLS"
    try:
        certificate = _certificate(url.hostname, url.port or _DEFAULT_PORT)
    except ssl.SSLCertVerificationError as problem:
        return fail(
            check,
            f"{url.hostname}'s certificate is refused: {problem.verify_message}",
            "renew it, or have this host trust its issuer: copy the issuer's certificate to "
            "/usr/local/share/ca-certificates/ and run update-ca-certificates",
        )
    except (OSError, ValueError) as problem:
        return fail(
            check,
            f"no TLS with {settings.url}: {told(problem)}",
            "look at nats.url, at the server, and at the firewalls between",
        )
    left_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - now_s
    found = f"{url.hostname}'s certificate is trusted"
    return _with_time_left(check, found, left_s, "renew the server's certificate")


def _certificate(host: str, port: int) -> dict[str, Any]:
    with socket.create_connection((host, port), timeout=_WITHIN_S) as plain:
        # The server speaks first, and only this line in the clear.
        greeting = b""
        while not greeting.endswith(b"\n"):
            if not (byte := plain.recv(1)):
                raise ValueError("the server hangs up")
            greeting += byte
        if not json.loads(greeting.removeprefix(b"INFO ")).get("tls_required"):
            raise ValueError("the server offers no TLS")
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname=host) as secured:
            return dict(secured.getpeercert() or {})


async def check_connection(settings: AgentSettings, now_s: Callable[[], float]) -> list[Finding]:
    """Connect as the agent does; then look at what it may hear, and at the clocks."""
    connection = AgentClient()
    errors: list[Exception] = []

    async def note(error: Exception) -> None:
        errors.append(error)

    try:
        await asyncio.wait_for(
            connection.connect(
                settings.nats.url,
                name=f"fleetcast-agent doctor {settings.region} {settings.node}",
                user_credentials=settings.nats.credentials_file,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                error_cb=note,
            ),
            _WITHIN_S,
        )
    except (nats.errors.Error, NkeysError, OSError, ValueError) as problem:
        why = told(errors[-1] if errors else problem)
        await close_in_time(connection)
        return [
            fail(
                "NATS",
                f"can't connect to {settings.nats.url}: {why}",
                "look at nats.url and nats.credentials_file, at the server, at the firewalls",
            )
        ]
    try:
        round_trip_ms = await connection.rtt() * 1_000
        return [
            ok(
                "NATS",
                f"connected to {settings.nats.url}; a round trip takes {round_trip_ms:.1f} ms",
            ),
            await _check_permissions(connection, settings, errors),
            await _check_clock(connection, now_s),
        ]
    except (nats.errors.Error, OSError) as problem:
        return [fail("NATS", f"the connection broke: {told(problem)}", "look at the server's log")]
    finally:
        await close_in_time(connection)


async def _check_permissions(
    connection: AgentClient, settings: AgentSettings, errors: list[Exception]
) -> Finding:
    """Subscribe to what the agent needs, one after the other, and leave again at once."""
    check = "permissions"
    refused: list[str] = []
    wanted = _subscriptions(settings)
    for subject, queue in wanted:
        errors.clear()
        subscription = await connection.subscribe(subject, queue=queue)
        # Twice: nats-py writes a PING ahead of what still waits to be written.
        await connection.flush()
        await connection.flush()
        if errors:
            refused.append(f"{subject} {queue}".strip())
        else:
            await subscription.unsubscribe()
    if refused:
        return fail(
            check,
            f"the server refuses subscriptions: {', '.join(refused)}",
            f"allow them to the node's user, the launches as ec2.RunInstances.{settings.region}.> "
            f"{LAUNCH_QUEUE_GROUP}",
        )
    return ok(check, f"all {len(wanted)} kinds of subscriptions are allowed")


def _subscriptions(settings: AgentSettings) -> Sequence[tuple[str, str]]:
    families = {*settings.families, *(one.partition(".")[0] for one in settings.instance_types)}
    zones = (None,) if settings.zone is None else (None, settings.zone)
    launches = [
        (launch_subject(settings.region, f"{family}.{_NOBODYS_SIZE}", zone), LAUNCH_QUEUE_GROUP)
        for family in sorted(families)
        for zone in zones
    ]
    node = node_subscription(settings.region, settings.node)
    return [(node, ""), (region_subscription(settings.region), ""), *launches]


async def _check_clock(connection: AgentClient, now_s: Callable[[], float]) -> Finding:
    check = "clock"
    asked_at_ms = now_s() * 1_000
    try:
        answer = await connection.request(_WHO_AM_I, b"", timeout=_TIME_WITHIN_S)
        answered_at_ms = now_s() * 1_000
        told_at = datetime.fromisoformat(json.loads(answer.data)["server"]["time"])
    except (nats.errors.Error, ValueError, KeyError, TypeError) as problem:
        return warn(
            check,
            f"the server doesn't tell its time: {told(problem)}",
            f"allow the node's user to publish {_WHO_AM_I}, or compare the clocks yourself: "
            "they may differ by half a second",
        )
    uncertain_ms = (answered_at_ms - asked_at_ms) / 2
    ahead_ms = (asked_at_ms + answered_at_ms) / 2 - told_at.timestamp() * 1_000
    side = "ahead of" if ahead_ms > 0 else "behind"
    found = (
        f"{abs(ahead_ms):.0f} ms {side} the NATS server's, "
        f"measured to {uncertain_ms:.0f} ms by a request to it"
    )
    if abs(ahead_ms) - uncertain_ms > _SKEW_ALLOWED_MS:
        return fail(
            check,
            f"{found}; {_SKEW_ALLOWED_MS} ms are allowed",
            "synchronize both clocks: timedatectl set-ntp true",
        )
    return ok(check, found)


def _with_time_left(check: str, found: str, left_s: float, mend: str) -> Finding:
    if left_s < 0:
        return fail(check, f"{found}, but has expired", mend)
    days = int(left_s // _DAY_S)
    if days < _LITTLE_TIME_DAYS:
        return warn(check, f"{found}, for {days} days more only", mend)
    return ok(check, f"{found}, for {days} days more")


def _expiry_of(credentials: str) -> float | None:
    """Return until when the JWT in a credentials file is valid, epoch seconds; None: no end."""
    lines = credentials.partition("-----BEGIN NATS USER JWT-----")[2].split()
    with contextlib.suppress(IndexError, ValueError, binascii.Error):
        claims = lines[0].split(".")[1]
        expiry = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))).get("exp")
        return float(expiry) if expiry else None
    return None
