"""A file tree that is brought to what it should hold: a host's `/`, or an image that is built.

Each change is said in one line, and so is what needed none; a rehearsal says the same and changes
nothing. What was written or made is listed in MANIFEST, so that all of it can be taken away again,
also by a later version.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from fleetcast.errors import FleetcastError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MANIFEST: Final = "/etc/fleetcast/installed-files"


class InstallFailed(FleetcastError):
    """The node can't be changed as was asked. The message says what to do."""


class Tree:
    """Files below a root. say: told each step. is_rehearsal: steps are said, not taken."""

    def __init__(self, root: Path, *, say: Callable[[str], None], is_rehearsal: bool) -> None:
        self.root = root
        self.is_rehearsal = is_rehearsal
        self.changes_n = 0
        self._say = say
        self._listed = self._read_manifest()
        self._claimed: set[str] = set()

    def path(self, name: str) -> Path:
        """Return where a path of the node, such as /etc/fleetcast, is in this tree."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None without one. Raises InstallFailed."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _failed(f"{name} can't be read", problem) from problem

    def write(self, name: str, content: bytes, *, mode: int = 0o644) -> bool:
        """Have a file hold that; return whether it had to be changed. Raises InstallFailed."""
        if self.read(name) == content:
            self._say(f"unchanged   {name}")
            self._list(name)
            return False
        self.change("write", name)
        if not self.is_rehearsal:
            try:
                self._write(self.path(name), content, mode)
            except OSError as problem:
                raise _failed(f"{name} can't be written", problem) from problem
        self._list(name)
        return True

    def _write(self, path: Path, content: bytes, mode: int) -> None:
        self._make_folder(path.parent)
        # Nobody sees half of it, and nobody else a secret.
        half_written = path.with_name(f".{path.name}.new")
        half_written.unlink(missing_ok=True)
        descriptor = os.open(half_written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, mode)
        half_written.replace(path)

    def link(self, name: str, target: str) -> bool:
        """Have a symbolic link point there; return whether it had to be changed."""
        path = self.path(name)
        if path.is_symlink() and str(path.readlink()) == target:
            self._say(f"unchanged   {name}")
            self._list(name)
            return False
        self.change("link", f"{name} -> {target}")
        if not self.is_rehearsal:
            try:
                self._make_folder(path.parent)
                path.unlink(missing_ok=True)
                path.symlink_to(target)
            except OSError as problem:
                raise _failed(f"{name} can't be made", problem) from problem
        self._list(name)
        return True

    def change(self, verb: str, what: str) -> None:
        """Say a change that is made now, or that would be."""
        self.changes_n += 1
        self._say(f"{'would ' + verb if self.is_rehearsal else verb:<11} {what}")

    def keep(self, what: str) -> None:
        """Say what is as it should be."""
        self._say(f"unchanged   {what}")

    # --- what was installed ----------------------------------------------------------------

    @contextlib.contextmanager
    def manifest(self) -> Iterator[None]:
        """List what is installed meanwhile, also when not all of it can be."""
        try:
            yield
        finally:
            listed = "".join(f"{one}\n" for one in self._listed).encode()
            if self.read(MANIFEST) != listed and not self.is_rehearsal:
                self._write(self.path(MANIFEST), listed, 0o644)

    def claim(self, *names: str) -> None:
        """Keep files from being removed as those of another version."""
        self._claimed.update(names)

    def remove_unclaimed(self) -> bool:
        """Remove listed files that were not written this time; return whether there were any.

        They are another version's, or those of what this node no longer does.
        """
        unclaimed = [
            one for one in self._listed if one not in self._claimed and not self.path(one).is_dir()
        ]
        for name in unclaimed:
            self._remove(name)
            self._listed.remove(name)
        return bool(unclaimed)

    def remove_installed(self, *, keep: frozenset[str] = frozenset()) -> None:
        """Remove every file that was installed, then the folders that were made for them."""
        for name in reversed([*self._listed, MANIFEST] if self._listed else []):
            if name not in keep:
                self._remove(name)
        self._listed = []

    def _remove(self, name: str) -> None:
        path = self.path(name)
        if not path.exists() and not path.is_symlink():
            return
        is_folder = path.is_dir() and not path.is_symlink()
        if is_folder and any(path.iterdir()):
            return  # somebody else's files are in it by now
        self.change("remove", name)
        if self.is_rehearsal:
            return
        try:
            path.rmdir() if is_folder else path.unlink()
        except OSError as problem:
            raise _failed(f"{name} can't be removed", problem) from problem

    def _make_folder(self, folder: Path) -> None:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(mode=0o755)
            self._list("/" + str(one.relative_to(self.root)))

    def _list(self, name: str) -> None:
        self._claimed.add(name)
        if name not in self._listed:
            self._listed.append(name)

    def _read_manifest(self) -> list[str]:
        return (self.read(MANIFEST) or b"").decode().splitlines()


def _failed(what: str, problem: OSError) -> InstallFailed:
    hint = "; run it as root, with sudo" if isinstance(problem, PermissionError) else ""
    return InstallFailed(f"{what}: {problem.strerror}{hint}")
