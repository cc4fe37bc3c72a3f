"""The folder of fetched images: one file for each content, named by its SHA-256. Blocking.

A guest gets a hard link of the file it runs on. So what a guest needs is known by its link count,
whichever agent of this machine runs it and whatever has crashed; and should its file be dropped
here all the same, the guest keeps it. Files come to their names only when they are complete,
checked and on disk; what an agent that was killed has left unfinished is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.images.progress import Progress
from fleetcast.agent.images.sources import opened
from fleetcast.agent.images.urls import shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import RawIOBase
    from pathlib import Path

    from fleetcast.agent.images.catalogue import Image

_LOCK: Final = "lock"
_UNFINISHED: Final = ".unfinished"
_GIB: Final = 2**30


class _Cached(NamedTuple):
    """A file in the cache. is_in_use: a guest runs on it."""

    used_at_s: float
    path: Path
    size_bytes: int
    is_in_use: bool


class ImageCache:
    """Images in `folder`, which is on the file system of the guests' folders.

    max_bytes: what all of them together may take.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in folder.glob(f"*{_UNFINISHED}"):
            with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
                # Not that of an agent that is at it.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is(path, file):
                    path.unlink()

    def link(self, image: Image, at: Path) -> bool:
        """Give a guest the image as `at`. Return False if it isn't here."""
        cached = self._folder / image.sha256
        with self._locked():
            if not cached.exists():
                return False
            at.unlink(missing_ok=True)
            at.hardlink_to(cached)
            os.utime(cached)
            return True

    def fetch(self, image: Image) -> bool:
        """Fetch an image that isn't here. Return False if another agent is at it: ask again.

        Raises FetchFailed, and BootFailed for what another try would not mend.
        """
        with self._unfinished(image) as file:
            if file is None:
                return False
            if not (self._folder / image.sha256).exists():
                self._download(image, file)
                self._path_of_unfinished(image).replace(self._folder / image.sha256)
            return True

    @contextlib.contextmanager
    def _unfinished(self, image: Image) -> Iterator[RawIOBase | None]:
        """Open the file to fetch into, for this process alone; None if another one has it."""
        path = self._path_of_unfinished(image)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            if not _is(path, file):
                yield None  # it has been finished or given up since it was opened
                return
            try:
                yield file
            finally:
                if _is(path, file):
                    file.truncate(0)  # room at once, whoever else has it open
                    path.unlink()

    def _path_of_unfinished(self, image: Image) -> Path:
        return self._folder / f"{image.sha256}{_UNFINISHED}"

    def _download(self, image: Image, file: RawIOBase) -> None:
        hasher = hashlib.sha256()
        try:
            with opened(image.source) as source:
                may_take_bytes = self._make_room(image, source.length, file)
                progress = Progress(image, source.length)
                for chunk in source.chunks:
                    if file.tell() + len(chunk) > may_take_bytes:
                        raise BootFailed(f"image {image.id} takes more than {_gib(may_take_bytes)}")
                    hasher.update(chunk)
                    _write(file, chunk)
                    progress.now_at(file.tell())
            file.truncate(file.tell())  # it was as large as had been said
            os.fchmod(file.fileno(), 0o400)
            os.fsync(file.fileno())
        except OSError as problem:
            raise BootFailed(
                f"image {image.id} can't be written to the node's cache: {problem.strerror}"
            ) from problem
        if hasher.hexdigest() != image.sha256:
            raise BootFailed(
                f"image {image.id} is not what its catalogue says: the SHA-256 of "
                f"{shown_url(image.source)} is {hasher.hexdigest()}, expected {image.sha256}"
            )
        progress.done()

    def _make_room(self, image: Image, length: int | None, file: RawIOBase) -> int:
        """Drop what was used longest ago until an image fits; return how much it may take.

        Raises BootFailed if it doesn't.
        """
        needed_bytes = length or 0
        with self._locked():
            others = self._cached(but=self._path_of_unfinished(image))
            taken_bytes = sum(one.size_bytes for one in others)
            for one in sorted(others):
                if taken_bytes + needed_bytes <= self._max_bytes:
                    break
                if not one.is_in_use:
                    one.path.unlink()
                    taken_bytes -= one.size_bytes
            left_bytes = self._max_bytes - taken_bytes
            if needed_bytes > left_bytes:
                raise BootFailed(
                    f"image {image.id} takes {_gib(needed_bytes)}, and the cache of "
                    f"{_gib(self._max_bytes)} has {_gib(left_bytes)} that no guest uses"
                )
            free_bytes = shutil.disk_usage(self._folder).free
            if needed_bytes > free_bytes:
                raise BootFailed(
                    f"image {image.id} takes {_gib(needed_bytes)}, and the node's disk has "
                    f"{_gib(free_bytes)} free"
                )
            # So that who makes room meanwhile counts it.
            file.truncate(needed_bytes)
        return needed_bytes if length is not None else left_bytes

    def _cached(self, *, but: Path) -> list[_Cached]:
        files = []
        for path in self._folder.iterdir():
            if path.name == _LOCK or path == but:
                continue
            with contextlib.suppress(FileNotFoundError):  # finished or given up meanwhile
                stat = path.stat()
                in_use = stat.st_nlink > 1 or path.suffix == _UNFINISHED
                files.append(_Cached(stat.st_mtime, path, stat.st_size, in_use))
        return files

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep every other agent from dropping and linking; for moments only."""
        with (self._folder / _LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _write(file: RawIOBase, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:  # a disk that fills up takes a part first
        left = left[file.write(left) or 0 :]


def _is(path: Path, file: RawIOBase) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.2f} GiB"
