"""The section [images] of agent.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fleetcast.agent.images.urls import check_url

Text = Annotated[str, msgspec.Meta(min_length=1, description="a path")]


class ImagesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's images come from.

    catalogue: the node's own images.toml; it may be absent. region_catalogue: another one, fetched
    every refresh_s seconds. cache_dir: None: "images" in the state folder. cache_gib: what fetched
    images may take of the disk; none is larger than that.
    """

    catalogue: Text = "/etc/fleetcast/images.toml"
    region_catalogue: Text | None = None
    refresh_s: Annotated[int, msgspec.Meta(ge=10, description="seconds, from 10")] = 300
    cache_dir: Text | None = None
    cache_gib: Annotated[int, msgspec.Meta(ge=1, description="a whole number of GiB from 1")] = 50

    def __post_init__(self) -> None:
        """Refuse a URL that would not be encrypted, or that holds a password."""
        if self.region_catalogue is not None:
            check_url(self.region_catalogue, key="region_catalogue")
