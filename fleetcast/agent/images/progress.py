"""Tells in the log how far the fetching of an image has come."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from fleetcast.agent.images.urls import shown_url

if TYPE_CHECKING:
    from fleetcast.agent.images.catalogue import Image

_log = logging.getLogger(__name__)

_TELL_EVERY_S: Final = 10.0


class Progress:
    """One fetch. length: of the whole in bytes, None if nobody knows."""

    def __init__(self, image: Image, length: int | None) -> None:
        self._image = image
        self._length = length
        self._began_s = self._told_at_s = time.monotonic()
        self._bytes = 0
        self._tell("fetching image", source=shown_url(image.source), bytes_in_all=length)

    def now_at(self, fetched_bytes: int) -> None:
        """Note how much has come; told every ten seconds."""
        self._bytes = fetched_bytes
        if time.monotonic() - self._told_at_s >= _TELL_EVERY_S:
            self._told_at_s = time.monotonic()
            percent = round(100 * fetched_bytes / self._length) if self._length else None
            self._tell("still fetching image", bytes=fetched_bytes, percent=percent)

    def done(self) -> None:
        """Tell that it is here and is what it should be."""
        took_s = round(time.monotonic() - self._began_s, 1)
        self._tell("image fetched", bytes=self._bytes, took_s=took_s)

    def _tell(self, phrase: str, **fields: object) -> None:
        _log.info(phrase, extra={"image": self._image.id, **fields})
