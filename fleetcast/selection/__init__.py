"""Which regions to try, in which order, and what is said to somebody who asks beforehand.

Launching and recommending go by one order, rank_regions. This package is pure: standard library
and msgspec only.
"""

from fleetcast.selection.ranking import (
    DEFAULT_TIE_BAND,
    Freshness,
    RankedRegion,
    RegionScore,
    count_tied,
    is_blind,
    rank_regions,
)
from fleetcast.selection.recommendation import (
    Recommendation,
    RegionReport,
    ScoredRegion,
    recommend,
    report_regions,
)

__all__ = [
    "DEFAULT_TIE_BAND",
    "Freshness",
    "RankedRegion",
    "Recommendation",
    "RegionReport",
    "RegionScore",
    "ScoredRegion",
    "count_tied",
    "is_blind",
    "rank_regions",
    "recommend",
    "report_regions",
]
