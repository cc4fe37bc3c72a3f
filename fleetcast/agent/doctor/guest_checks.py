"""What guests of real machines need beside QEMU: images, the folder of key pairs, a bridge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcast.agent.doctor.finding import fail, ok, warn
from fleetcast.agent.images.known_images import OwnCatalogue, read_regions_catalogue
from fleetcast.agent.images.sources import FetchFailed
from fleetcast.agent.images.urls import shown_url
from fleetcast.agent.install.service_user import may_read
from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from fleetcast.agent.doctor.finding import Finding
    from fleetcast.agent.images.settings import ImagesSettings

_INTERFACES: Final = Path("/sys/class/net")


def check_images(settings: ImagesSettings) -> list[Finding]:
    """Read the catalogues of images: without an image, no launch boots anything."""
    check = "images"
    try:
        own = OwnCatalogue(Path(settings.catalogue)).images
    except InvalidConfiguration as problem:
        wrong = f"{problem.key} {problem.problem}"
        return [fail(check, wrong, f"expected: {problem.expected}")]
    if settings.region_catalogue is None and not own:
        return [
            fail(
                check,
                f"none: {settings.catalogue} is missing or empty, and there is no region_catalogue",
                f"describe one in {settings.catalogue}: [[image]] with id, path or url, sha256, "
                "format and architecture; or set region_catalogue in [images] of agent.toml",
            )
        ]
    if unread := [one for one in own.values() if one.path and not _is_readable(Path(one.path))]:
        named = ", ".join(f"{one.id} {one.path}" for one in unread)
        mend = "put them there, outside of /home, /root and /tmp, with: chmod a+r"
        # It may have copies of them.
        found = [warn(check, f"the agent's user can't read the files of {named}", mend)]
    else:
        found = [ok(check, f"{len(own)} in {settings.catalogue}")]
    if settings.region_catalogue is not None:
        found.append(_check_regions(settings.region_catalogue))
    return found


def _is_readable(path: Path) -> bool:
    return path.is_file() and may_read(path)


def _check_regions(url: str) -> Finding:
    """Fetch the region's catalogue; a node that can't may have what it said before."""
    check = "region's images"
    try:
        images = read_regions_catalogue(url)
    except FetchFailed as problem:
        return warn(check, str(problem), "let this host read it, or correct region_catalogue")
    except InvalidConfiguration as problem:
        found = f"{problem.key} {problem.problem}"
        return warn(check, found, f"expected there: {problem.expected}")
    return ok(check, f"{len(images)} in {shown_url(url)}")


def check_key_pairs(folder: Path) -> Finding:
    """Look for the folder whose files are the key pairs that launches may name."""
    check = "key pairs"
    if not folder.is_dir():
        return fail(
            check,
            f"{folder} is no folder: every launch with a KeyName is refused",
            f"mkdir {folder}; the key pair web is {folder}/web.pub",
        )
    return ok(check, f"{len(list(folder.glob('*.pub')))} in {folder}")


def check_bridge(bridge: str, helper: Path) -> Finding:
    """Look for the host's bridge that guests are to be on, and for QEMU's way onto it."""
    check = "bridge"
    if not (_INTERFACES / bridge / "bridge").is_dir():
        return fail(
            check,
            f"{bridge} is no bridge of this host: no guest boots",
            f"ip link add {bridge} type bridge; ip link set {bridge} up",
        )
    if not helper.is_file():
        return fail(
            check,
            f"{helper} is not there: QEMU can't put guests onto {bridge}",
            "apt-get install qemu-system-common, or set bridge_helper in [qemu]",
        )
    if not _is_allowed(bridge):
        return warn(
            check,
            f"/etc/qemu/bridge.conf doesn't allow {bridge}",
            f"mkdir -p /etc/qemu; echo allow {bridge} >> /etc/qemu/bridge.conf",
        )
    return ok(check, f"{bridge} is there, and QEMU may put guests onto it")


def _is_allowed(bridge: str) -> bool:
    """Say whether QEMU's helper takes that bridge, as far as this file says; it may include others.

    Source: qemu-bridge-helper's parse_acl_file().
    """
    try:
        lines = Path("/etc/qemu/bridge.conf").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    rules = [line.split() for line in lines]
    return any(one in (["allow", bridge], ["allow", "all"]) for one in rules)
