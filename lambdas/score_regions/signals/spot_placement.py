"""How likely spot capacity is to be had: EC2's spot placement score of a pool of types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lambdas.score_regions.clients import AwsClients

SPOT_PLACEMENT: Final = "spot_placement"
BEST_SCORE: Final = 10  # AWS scores from 1 to 10
# More can't be named in a call, and more are in no answer.
MAX_REGIONS: Final = 10
# Any other number would be another configuration, of which few may be used in 24 hours.
TARGET_CAPACITY: Final = 1


def spot_placement_probe(
    pool: Sequence[str],
    instance_types: Sequence[str],
    region_names: Sequence[str],
    clients: AwsClients,
    *,
    now_s: float,
) -> Probe:
    """Read spot_placement (0-1, 1 is best) of each region, for the types that share a pool.

    pool: at least three types, for fewer always score low. region_names: MAX_REGIONS at most, and
    the same ones each time, for naming others is another configuration.
    """
    expects = tuple(
        SignalKey(SPOT_PLACEMENT, region_name, instance_type)
        for region_name in region_names
        for instance_type in instance_types
    )

    def read() -> dict[SignalKey, Reading]:
        pages = (
            clients.home_ec2()
            .get_paginator("get_spot_placement_scores")
            .paginate(
                InstanceTypes=list(pool),
                TargetCapacity=TARGET_CAPACITY,
                SingleAvailabilityZone=False,
                RegionNames=list(region_names),
            )
        )
        by_region = {
            entry["Region"]: Reading.of(entry["Score"] / BEST_SCORE, observed_at_s=now_s)
            for page in pages
            for entry in page["SpotPlacementScores"]
        }
        return {key: by_region[key.region] for key in expects if key.region in by_region}

    return Probe(name=f"spot placement of {', '.join(pool)}", expects=expects, read=read)
