"""Gives guests the images that they run on: each is fetched once, however many wait."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from fleetcast.agent.drivers import BootFailed
from fleetcast.agent.images.background import in_background
from fleetcast.agent.images.formats import virtual_size_bytes
from fleetcast.agent.images.sources import FetchFailed

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.agent.images.cache import ImageCache
    from fleetcast.agent.images.catalogue import Architecture, Firmware, Image, ImageFormat

_log = logging.getLogger(__name__)

_MAX_FETCHES: Final = 2
_MAX_TRIES: Final = 3
_BEFORE_NEXT_TRY_S: Final = 2.0
_OTHER_AGENT_POLL_S: Final = 0.5


class LocalImage(NamedTuple):
    """An image as a guest may use it, read only. path: the guest's own name for it."""

    path: Path
    format: ImageFormat
    firmware: Firmware
    architecture: Architecture
    virtual_size_bytes: int


class ImageStore:
    """The images of one agent. before_next_try_s: the pause after a fetch that has failed."""

    def __init__(self, cache: ImageCache, *, before_next_try_s: float = _BEFORE_NEXT_TRY_S) -> None:
        self._cache = cache
        self._before_next_try_s = before_next_try_s
        self._fetches = asyncio.Semaphore(_MAX_FETCHES)
        self._under_way: dict[Image, asyncio.Task[None]] = {}

    async def link(self, image: Image, at: Path) -> LocalImage:
        """Give a guest the image as `at`, a link, once it is here and its checksum is right.

        What stands at `at` is replaced. Who is cancelled leaves the fetch to the others.
        Raises BootFailed.
        """
        try:
            while not await in_background(lambda: self._cache.link(image, at)):
                await self._fetch_once(image)
            size_bytes = await in_background(lambda: virtual_size_bytes(at, image.format))
        except OSError as problem:
            raise BootFailed(f"image {image.id} can't be used: {problem.strerror}") from problem
        return LocalImage(at, image.format, image.firmware, image.architecture, size_bytes)

    async def _fetch_once(self, image: Image) -> None:
        """Fetch an image together with all who wait for it."""
        task = self._under_way.get(image)
        if task is None:
            task = asyncio.create_task(self._fetch(image))
            self._under_way[image] = task
            task.add_done_callback(lambda _: self._under_way.pop(image))
        await asyncio.shield(task)

    async def _fetch(self, image: Image) -> None:
        tries_n = 0
        async with self._fetches:
            while True:
                try:
                    if await in_background(lambda: self._cache.fetch(image)):
                        return
                    await asyncio.sleep(_OTHER_AGENT_POLL_S)
                except FetchFailed as problem:
                    tries_n += 1
                    if not problem.may_pass or tries_n == _MAX_TRIES:
                        raise BootFailed(
                            f"image {image.id} can't be fetched: {problem}"
                        ) from problem
                    _log.warning(
                        "image not fetched, trying again",
                        extra={"image": image.id, "why": str(problem)},
                    )
                    await asyncio.sleep(self._before_next_try_s * tries_n)
