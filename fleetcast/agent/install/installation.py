"""Install, upgrade and uninstall, as sequences of steps; each may be repeated after it has failed.

On a tree that is no running host only files are written: systemd makes the user and the folders
of an image, and gives them their owners, when it first boots.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fleetcast.agent.guest_processes import AGENT_UNIT
from fleetcast.agent.images.settings import ImagesSettings
from fleetcast.agent.install.live_host import LiveHost
from fleetcast.agent.install.node_files import (
    CONFIG,
    CONFIG_DIR,
    CREDENTIALS,
    RUN_DIR,
    STATE_DIR,
    USER,
    write_node_files,
)
from fleetcast.agent.install.tree import MANIFEST, InstallFailed, Tree
from fleetcast.agent.toml_lines import read_toml
from fleetcast.nats_access import is_credentials_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# No service sees what is below these.
_HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - none is used


class Installation:
    """The agent on one host, or in one tree. say: told each step in a line."""

    def __init__(self, root: Path, *, say: Callable[[str], None], is_rehearsal: bool) -> None:
        self._tree = Tree(root, say=say, is_rehearsal=is_rehearsal)
        self._host = LiveHost(self._tree) if root == Path("/") else None
        self._say = say

    def install(
        self,
        *,
        python: str,
        configuration: str | None,
        credentials: Path | None,
        start: bool,
    ) -> None:
        """Bring the node to what it should be. Raises InstallFailed.

        python: the interpreter, as the node sees it. configuration: None: none is written.
        """
        self._check(python)
        secret = _read_credentials(credentials) if credentials else None
        with self._tree.manifest():
            if secret is not None:
                self._tree.write(CREDENTIALS, secret, mode=0o600)
            if configuration is not None:
                self._write_configuration(configuration.encode())
            has_news = self._write_node_files(python, configuration or "")
        self._say_if_no_images(configuration or "")
        if self._host:
            self._host.follow(has_news=has_news)
            if start:
                self._host.start()
        self._conclude("installed")

    def upgrade(self, *, python: str) -> None:
        """Renew what an earlier version has installed, and restart the agent. Raises InstallFailed.

        Guests run on.
        """
        if self._tree.read(MANIFEST) is None:
            raise InstallFailed("the agent is not installed here: fleetcast-agent install")
        self._check(python)
        with self._tree.manifest():
            has_news = self._write_node_files(python, "")
        if self._host:
            self._host.follow(has_news=has_news)
            # Also when no file has changed: the code may have.
            self._host.run("systemctl", "try-restart", AGENT_UNIT)
        self._conclude("upgraded")

    def uninstall(self, *, keep_state: bool, terminate_guests: bool) -> None:
        """Take everything off again. Raises InstallFailed while guests run, unless they may end."""
        if self._host:
            self._host.check_systemd()
            self._leave_service(self._host, terminate_guests=terminate_guests)
        kept = frozenset({CONFIG_DIR, CONFIG, CREDENTIALS} if keep_state else set())
        self._tree.remove_installed(keep=kept)
        for folder in (RUN_DIR,) if keep_state else (RUN_DIR, STATE_DIR, CONFIG_DIR):
            self._remove_folder(folder)
        if self._host:
            self._host.run("systemctl", "daemon-reload")
        if not keep_state:
            self._remove_user()
        self._conclude("uninstalled")

    # --- steps -----------------------------------------------------------------------------

    def _check(self, python: str) -> None:
        if self._host:
            self._host.check_systemd()
            self._host.check_polkit()
        place = self._tree.path(python)
        # In an image a link may lead to what this host doesn't have.
        if not place.exists() and not place.is_symlink():
            raise InstallFailed(
                f"{python} is not in {self._tree.root}: install fleetcast there, e.g. into "
                "/opt/fleetcast, and name its interpreter with --python"
            )
        # A link leads out of a virtual environment to the interpreter that it was made with.
        places = {python} if self._host is None else {python, str(place.resolve())}
        hidden = [one for one in places if one.startswith(tuple(f"{top}/" for top in _HIDDEN))]
        if hidden:
            raise InstallFailed(
                f"{hidden[0]} is in a folder that a service doesn't see: install into another, "
                "e.g. /usr/bin/python3 -m venv /opt/fleetcast && "
                "/opt/fleetcast/bin/pip install 'fleetcast-VERSION-py3-none-any.whl[agent]'"
            )

    def _write_node_files(self, python: str, wished: str) -> bool:
        """Write what belongs to the configuration that there is, or else is wished."""
        has_bridge = bool(_section(self._configured(wished), "qemu").get("bridge"))
        has_news = write_node_files(self._tree, python=python, has_bridge=has_bridge)
        self._tree.claim(CONFIG, f"{CONFIG}.new", CREDENTIALS)
        return self._tree.remove_unclaimed() or has_news

    def _say_if_no_images(self, wished: str) -> None:
        """Say what a node lacks on which launches would find nothing to boot."""
        values = self._configured(wished)
        images = _section(values, "images")
        own = str(images.get("catalogue", ImagesSettings().catalogue))
        has_images = images.get("region_catalogue") or self._tree.read(own) is not None
        if values.get("driver") == "qemu" and not has_images:
            self._say(
                f"missing     {own}: until it describes an image, or region_catalogue in "
                f"{CONFIG} names a list of them, guests have nothing to boot from"
            )

    def _configured(self, wished: str) -> Mapping[str, Any]:
        """Return what the configuration that there is, or else is wished, says."""
        content = self._tree.read(CONFIG) or wished.encode()
        values, _ = read_toml(content, source=CONFIG, expected='lines such as node = "n1"')
        return values

    def _write_configuration(self, wished: bytes) -> None:
        existing = self._tree.read(CONFIG)
        if existing is None or existing == wished:
            self._tree.write(CONFIG, wished, mode=0o640)
            return
        self._tree.keep(f"{CONFIG} (yours; what was asked for now is in {CONFIG}.new)")
        self._tree.write(f"{CONFIG}.new", wished, mode=0o640)

    def _leave_service(self, host: LiveHost, *, terminate_guests: bool) -> None:
        guests = host.guests()
        if guests and not terminate_guests:
            named = ", ".join(f"{one.name} (pid {one.pid})" for one in guests[:5])
            raise InstallFailed(
                f"guests run: {named}{', …' if guests[5:] else ''}; drain the node first, "
                "or end them with --terminate-guests"
            )
        if host.is_active():
            host.run("systemctl", "stop", AGENT_UNIT)
        if guests:
            host.end_guests()

    def _remove_folder(self, name: str) -> None:
        path = self._tree.path(name)
        if not path.exists():
            return
        self._tree.change("remove", name)
        if not self._tree.is_rehearsal:
            shutil.rmtree(path)

    def _remove_user(self) -> None:
        users = (self._tree.read("/etc/passwd") or b"").decode(errors="replace")
        if not any(line.startswith(f"{USER}:") for line in users.splitlines()):
            return
        where = () if self._host else ("--prefix", str(self._tree.root))
        LiveHost(self._tree).run("userdel", *where, USER)

    def _conclude(self, done: str) -> None:
        if self._tree.is_rehearsal:
            self._say(f"a rehearsal: {self._tree.changes_n} changes, none made")
        elif self._tree.changes_n:
            changes_n = self._tree.changes_n
            self._say(f"{done}: {changes_n} {'change' if changes_n == 1 else 'changes'}")
        else:
            self._say("nothing to change")


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _read_credentials(path: Path) -> bytes:
    try:
        credentials = path.read_bytes()
    except OSError as problem:
        raise InstallFailed(f"{path} can't be read: {problem.strerror}") from problem
    if not is_credentials_file(credentials.decode("utf-8", "replace")):
        raise InstallFailed(
            f"{path} holds no user JWT and seed; expected a file as `nsc generate creds` writes"
        )
    return credentials
