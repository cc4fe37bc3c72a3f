"""All checks, in the order in which what they find is to be mended."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fleetcast.agent.doctor.connection_checks import (
    check_connection,
    check_credentials,
    check_tls,
)
from fleetcast.agent.doctor.finding import fail, ok
from fleetcast.agent.doctor.guest_checks import check_bridge, check_images, check_key_pairs
from fleetcast.agent.doctor.host_checks import (
    check_clock_is_kept,
    check_disk,
    check_guest_units,
    check_qemu,
    check_state_dir,
    check_user,
)
from fleetcast.agent.settings import read_settings
from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import ec2_catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetcast.agent.doctor.finding import Finding
    from fleetcast.agent.settings import AgentSettings


def examine(config: Path, *, now_s: Callable[[], float] = time.time) -> list[Finding]:
    """Return what was found, the configuration first: all else depends on it.

    now_s: epoch seconds, of the clock that is examined.
    """
    try:
        config = config.absolute()  # the agent's user looks for it from another folder
        settings = read_settings(config)
        served = settings.served_types(ec2_catalogue())
    except InvalidConfiguration as problem:
        found = f"{problem.key} {problem.problem}"
        return [fail("configuration", found, f"expected: {problem.expected}")]
    node = f"node {settings.node} of {settings.region}"
    named = f"{config}: {node}, up to {len(served)} instance types"
    return [
        ok("configuration", named),
        *_of_host(config, settings),
        *_of_connection(settings, now_s),
    ]


def _of_host(config: Path, settings: AgentSettings) -> list[Finding]:
    state_dir = Path(settings.state_dir)
    credentials = settings.nats.credentials_file
    files = [config, *([Path(credentials)] if credentials else [])]
    if settings.driver == "qemu":
        files.append(Path(settings.images.catalogue))
    found = [
        check_user(files),
        check_state_dir(state_dir),
        check_disk(state_dir),
        check_clock_is_kept(),
    ]
    if settings.driver == "qemu":
        found += [*check_qemu(settings.qemu), check_guest_units(), *_of_guests(settings)]
    return found


def _of_guests(settings: AgentSettings) -> list[Finding]:
    found = check_images(settings.images)
    if settings.key_pairs_dir is not None:
        found.append(check_key_pairs(Path(settings.key_pairs_dir)))
    if settings.qemu.bridge is not None:
        found.append(check_bridge(settings.qemu.bridge, Path(settings.qemu.bridge_helper)))
    return found


def _of_connection(settings: AgentSettings, now_s: Callable[[], float]) -> list[Finding]:
    before = [check_credentials(settings.nats, now_s()), check_tls(settings.nats, now_s())]
    found = [one for one in before if one is not None]
    if any(one.state == "fail" for one in found):
        return found  # connecting would fail for the same reason, and say it worse
    return [*found, *asyncio.run(check_connection(settings, now_s))]
