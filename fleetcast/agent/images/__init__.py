"""The images that this node's guests run on: which there are, and where they are.

`Images` is what drivers use; they know nothing else of this package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetcast.agent.drivers import BootFailed, ClientFault, NodeFault
from fleetcast.agent.images.cache import ImageCache
from fleetcast.agent.images.catalogue import IMAGE_ID_PATTERN
from fleetcast.agent.images.known_images import KnownImages, OwnCatalogue, RegionCatalogue
from fleetcast.agent.images.store import ImageStore, LocalImage
from fleetcast.errors import InvalidConfiguration

if TYPE_CHECKING:
    from fleetcast.agent.images.settings import ImagesSettings
    from fleetcast.instance_types import InstanceType
    from fleetcast.messages import LaunchRequest

__all__ = ["Images", "LocalImage"]

_GIB: Final = 2**30
_IMAGE_ID: Final = re.compile(IMAGE_ID_PATTERN)
_UNREAD: Final = "the region's image catalogue has not been read yet"


class Images:
    """A node's images. state_dir: below it lie the guests' folders.

    Raises InvalidConfiguration for a broken catalogue or an impossible cache.
    """

    def __init__(self, settings: ImagesSettings, state_dir: Path) -> None:
        folder = Path(settings.cache_dir) if settings.cache_dir else state_dir / "images"
        try:
            cache = ImageCache(folder, max_bytes=settings.cache_gib * _GIB)
            is_apart = folder.stat().st_dev != state_dir.stat().st_dev
        except OSError as problem:
            raise InvalidConfiguration(
                "images.cache_dir",
                f"{folder} can't be used: {problem.strerror}",
                expected="a folder that the agent may write to",
            ) from problem
        if is_apart:
            raise InvalidConfiguration(
                "images.cache_dir",
                f"{folder} is on another file system than {state_dir}",
                expected="the same one: guests get hard links of their images",
            )
        region = None
        if settings.region_catalogue is not None:
            region = RegionCatalogue(
                settings.region_catalogue,
                copy=state_dir / "region-images.toml",
                every_s=settings.refresh_s,
            )
        self._catalogue = settings.catalogue
        self._known = KnownImages(OwnCatalogue(Path(settings.catalogue)), region)
        self._store = ImageStore(cache)
        self._virtual_sizes: dict[str, int] = {}

    def check(self, request: LaunchRequest, instance_type: InstanceType) -> None:
        """Refuse an image that isn't there or doesn't suit. Takes no time.

        Raises ClientFault in EC2's words; NodeFault if the node was told of no image, or never
        read its region's catalogue.
        """
        image = self._known.get(request.image_id)
        if image is None:
            raise self._unknown(request.image_id)
        if image.architecture not in instance_type.architectures:
            raise ClientFault(
                "InvalidParameterValue",
                f"The architecture '{','.join(instance_type.architectures)}' of the specified "
                f"instance type does not match the architecture '{image.architecture}' of the "
                "specified AMI. Specify an instance type and an AMI that have matching "
                "architectures, and try again.",
            )
        size_bytes = self._virtual_sizes.get(image.sha256, 0)
        if isinstance(request.root_disk_gib, int) and request.root_disk_gib * _GIB < size_bytes:
            raise ClientFault(
                "InvalidBlockDeviceMapping",
                f"Volume of size {request.root_disk_gib}GB is smaller than image '{image.id}', "
                f"expect size >= {-(-size_bytes // _GIB)}GB",
            )

    def _unknown(self, image_id: str) -> ClientFault | NodeFault:
        if not _IMAGE_ID.match(image_id):
            return ClientFault(
                "InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")'
            )
        self._known.look_for_news()
        # What the region's catalogue has, or other nodes know, is no mistake of who asks.
        if self._known.is_unread:
            return NodeFault(_UNREAD)
        if lacked := self.lacks():
            return NodeFault(lacked)
        return ClientFault("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")

    def lacks(self) -> str | None:
        """Say why the node knows of no image at all, if nobody has told it of any."""
        if not self._known.is_untold:
            return None
        if self._known.is_unread:
            return _UNREAD
        return f"the node knows no image: {self._catalogue} is missing or empty"

    async def link(self, image_id: str, at: Path) -> LocalImage:
        """Give a guest its image as `at`, a link on the state folder's file system.

        It may have to be fetched first. What stands at `at` is replaced, so call it only while
        nothing runs on that. Who is cancelled leaves the fetch to the others.
        Raises BootFailed.
        """
        image = self._known.get(image_id)
        if image is None:
            raise BootFailed(f"image {image_id} is in no catalogue any more")
        local = await self._store.link(image, at)
        self._virtual_sizes[image.sha256] = local.virtual_size_bytes
        return local

    async def keep_current(self) -> None:
        """Follow the catalogues until cancelled."""
        await self._known.keep_current()
