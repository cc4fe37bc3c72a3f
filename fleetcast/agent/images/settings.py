"""The section [images] of agent.toml."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fleetcast.agent.images.urls import check_url
from fleetcast.agent.setting_types import MOST, AbsolutePath

_Url = Annotated[str, msgspec.Meta(description="https://host/path or s3://bucket/key")]
_RefreshS = Annotated[int, msgspec.Meta(ge=10, le=86_400, description="seconds, from 10 to 86400")]
_CacheGib = Annotated[
    int, msgspec.Meta(ge=1, le=MOST, description=f"a whole number of GiB from 1 to {MOST}")
]


class ImagesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's images come from.

    catalogue: the node's own images.toml; it may be absent. region_catalogue: another one, fetched
    every refresh_s seconds. cache_dir: None: "images" in the state folder. cache_gib: what fetched
    images may take of the disk; none is larger than that.
    """

    catalogue: AbsolutePath = "/etc/fleetcast/images.toml"
    region_catalogue: _Url | None = None
    refresh_s: _RefreshS = 300
    cache_dir: AbsolutePath | None = None
    cache_gib: _CacheGib = 50

    def __post_init__(self) -> None:
        """Refuse a URL that would not be encrypted, or that holds a password."""
        if self.region_catalogue is not None:
            check_url(self.region_catalogue, key="region_catalogue")
