"""Which images there are: the node's own catalogue, and its region's. The node's goes before.

Both are kept as they were last good: a broken edit, or a server that is away, takes no image away.
Asking takes no time; `keep_current` looks whether something has changed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fleetcast.agent.images.background import in_background
from fleetcast.agent.images.catalogue import read_catalogue
from fleetcast.agent.images.sources import FetchFailed, read_small
from fleetcast.agent.images.urls import shown_url
from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.images.catalogue import Catalogue, Image

_log = logging.getLogger(__name__)

_MAX_CATALOGUE_BYTES: Final = 4 * 2**20
_LOOK_EVERY_S: Final = 2.0
# An image that nobody knows yet may have been published a moment ago.
_FETCH_AGAIN_AFTER_S: Final = 10.0


class OwnCatalogue:
    """The node's own file; one that isn't there has no images.

    Raises InvalidConfiguration if it is broken when the agent starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = _version(path)
        self.images = self._read() if self._version else {}

    async def keep_current(self) -> None:
        """Follow the file until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Read the file if it has changed. A broken one changes nothing, and is told once."""
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self.images = self._read()
        except InvalidConfiguration as problem:
            _log.error(
                "image catalogue broken: keeping what it said before", extra={"why": str(problem)}
            )
        else:
            _log.info(
                "image catalogue read",
                extra={"path": str(self._path), "images": len(self.images)},
            )

    def _read(self) -> Catalogue:
        try:
            text = self._path.read_bytes()
        except OSError as problem:
            raise InvalidConfiguration(
                str(self._path), f"can't be read: {problem.strerror}", expected="a catalogue"
            ) from problem
        return read_catalogue(text, source=str(self._path), is_own=True)


class RegionCatalogue:
    """The region's catalogue, from a URL. copy: the file in which the last good one is kept.

    every_s: how often it is fetched.
    """

    def __init__(self, url: str, *, copy: Path, every_s: float) -> None:
        self._url = url
        self._copy = copy
        self._every_s = every_s
        self._wanted = asyncio.Event()
        self.images = self._kept()

    async def keep_current(self) -> None:
        """Fetch it now and again until cancelled."""
        while True:
            self._wanted.clear()
            try:
                await self.fetch()
            except Exception:  # noqa: BLE001 - the next one may do better
                _log.exception("region's image catalogue not read")
            await asyncio.sleep(min(_FETCH_AGAIN_AFTER_S, self._every_s))
            try:
                async with asyncio.timeout(max(0, self._every_s - _FETCH_AGAIN_AFTER_S)):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    def fetch_soon(self) -> None:
        """Have it fetched within seconds: somebody has asked for an image that it doesn't have."""
        self._wanted.set()

    async def fetch(self) -> None:
        """Fetch it; if that fails, or it is broken, what it said before stays."""
        try:
            text = await in_background(lambda: _fetched(self._url))
            images = read_catalogue(text, source=shown_url(self._url), is_own=False)
        except (FetchFailed, InvalidConfiguration) as problem:
            _log.error(
                "region's image catalogue not read: keeping what it said before",
                extra={"why": str(problem)},
            )
            return
        if images != self.images:
            _log.info("region's image catalogue read", extra={"images": len(images)})
        self.images = images
        self._keep(text)

    def _keep(self, text: bytes) -> None:
        unfinished = self._copy.with_suffix(".unfinished")
        try:
            unfinished.write_bytes(text)
            unfinished.replace(self._copy)
        except OSError as problem:  # only the next start would want it
            _log.warning("region's image catalogue not kept", extra={"why": str(problem)})

    def _kept(self) -> Catalogue | None:
        try:
            return read_catalogue(self._copy.read_bytes(), source=str(self._copy), is_own=False)
        except (OSError, InvalidConfiguration):
            return None  # there is none yet, or a crash has cut it off


def read_regions_catalogue(url: str) -> Catalogue:
    """Fetch a region's catalogue once. Raises FetchFailed and InvalidConfiguration."""
    return read_catalogue(_fetched(url), source=shown_url(url), is_own=False)


def _fetched(url: str) -> bytes:
    return read_small(url, max_bytes=_MAX_CATALOGUE_BYTES)


class KnownImages:
    """Both catalogues together. region: None if none is configured."""

    def __init__(self, own: OwnCatalogue, region: RegionCatalogue | None) -> None:
        self._own = own
        self._region = region

    @property
    def is_untold(self) -> bool:
        """Whether nobody has told the node of any image: it was just installed, most likely."""
        return not self._own.images and (self._region is None or self._region.images is None)

    @property
    def is_unread(self) -> bool:
        """Whether the region's catalogue has never been read, so that more images may be there."""
        return self._region is not None and self._region.images is None

    def get(self, image_id: str) -> Image | None:
        """Return the image of that id, or None."""
        image = self._own.images.get(image_id)
        if image is None and self._region and self._region.images:
            image = self._region.images.get(image_id)
        return image

    def look_for_news(self) -> None:
        """Have the region's catalogue fetched soon: somebody has asked for what isn't known."""
        if self._region is not None:
            self._region.fetch_soon()

    async def keep_current(self) -> None:
        """Follow both until cancelled."""
        region = self._region
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._own.keep_current())
            if region is not None:
                tasks.create_task(region.keep_current())


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with the file's content; None if it isn't there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
