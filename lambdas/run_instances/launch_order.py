"""In which order a launch tries the regions: by their scores, those asked in vain lately last."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from fleetcast.selection import RankedRegion, rank_regions

if TYPE_CHECKING:
    from lambdas.run_instances.launch_parameters import LaunchParameters
    from lambdas.run_instances.services import Services

_log = logging.getLogger(__name__)


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The regions to try. asked_last: those that moved behind, for they were asked in vain."""

    ranked: tuple[RankedRegion, ...]
    asked_last: tuple[str, ...]


def order_regions(services: Services, asked: LaunchParameters, *, launch_id: str) -> LaunchOrder:
    """Rank the regions that a launch may go to; all of them, in the order in which to try them."""
    settings = services.settings
    names = [asked.region] if asked.region else settings.region_names
    try:
        scores = services.scores.read_scores(asked.instance_type)
    except (BotoCoreError, ClientError, KeyError, ValueError) as problem:
        # A score only says where it is good to launch; nodes say whether it can be done.
        _log.warning("scores can't be read", extra={"why": repr(problem)})
        scores = {}
    ranked = rank_regions(
        names,
        scores,
        default_region=asked.region or settings.default_region,
        launch_id=launch_id,
        now_s=services.now_s(),
        max_score_age_s=settings.max_score_age_s,
        tie_band=settings.tie_band,
    )
    in_vain = services.refusals.asked_in_vain(names, asked.instance_type, asked.zone)
    ranked.sort(key=lambda one: one.region in in_vain)  # which keeps the order otherwise
    return LaunchOrder(
        ranked=tuple(ranked),
        asked_last=tuple(one.region for one in ranked if one.region in in_vain),
    )
