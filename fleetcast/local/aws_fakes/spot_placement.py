"""GetSpotPlacementScores: how likely a pool of types is to be had in each region, 1 to 10.

Source: EC2 API reference; EC2 User Guide, "Spot placement score" and its limitations.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fleetcast.local.aws_fakes.call import Refused

if TYPE_CHECKING:
    from fleetcast.local.aws_fakes.call import Call
    from fleetcast.local.aws_fakes.scenario import Scenario

MAX_REGIONS = 10  # in a request, and in the whole of an answer
LOWEST, HIGHEST = 1, 10
FEW_TYPES = 3  # a pool of fewer always scores low
FEW_TYPES_SCORE = 3
MOVES_BY = 3  # points up or down
REMEMBERED_S = 86_400.0


class SpotPlacement:
    """Answers from the scenario, and remembers what was asked for in the last 24 hours.

    Only these configurations are free to ask for again, once the scenario's limit is reached.
    """

    def __init__(self) -> None:
        self._used_at_s: dict[tuple[object, ...], float] = {}
        self._lock = threading.Lock()

    def scores(self, call: Call, scenario: Scenario) -> list[dict[str, str]]:
        """List the regions with the highest scores, ten at most. Raises Refused."""
        target_capacity = call.required("TargetCapacity")
        call.required("InstanceType.1")
        if call.parameters.get("SingleAvailabilityZone") == "true":
            raise Refused("InvalidParameterValue", "These fakes score no Availability Zones.")
        asked_for = call.values_of("RegionName")
        if len(asked_for) > MAX_REGIONS:
            raise Refused(
                "InvalidParameterValue", f"At most {MAX_REGIONS} RegionNames are allowed."
            )
        self._use(
            (
                frozenset(call.instance_types),
                target_capacity,
                call.parameters.get("TargetCapacityUnitType"),
                frozenset(asked_for),
            ),
            now_s=call.at_s,
            limit=scenario.spot_placement_configurations,
        )
        scores = {
            region: score
            for region in asked_for or scenario.spot_placement
            if (score := _score(call, scenario, region)) is not None
        }
        best = sorted(scores, key=lambda region: (-scores[region], region))[:MAX_REGIONS]
        return [{"region": region, "score": str(scores[region])} for region in best]

    def _use(self, configuration: tuple[object, ...], *, now_s: float, limit: int | None) -> None:
        with self._lock:
            self._used_at_s = {
                used: at_s for used, at_s in self._used_at_s.items() if now_s - at_s < REMEMBERED_S
            }
            is_new = configuration not in self._used_at_s
            if is_new and limit is not None and len(self._used_at_s) >= limit:
                raise Refused(
                    "MaxConfigLimitExceeded",
                    "You have exceeded your maximum allowed Spot placement configurations. You can"
                    " retry configurations that you used within the last 24 hours, or wait for 24"
                    " hours before specifying a new configuration.",
                )
            self._used_at_s[configuration] = now_s


def _score(call: Call, scenario: Scenario, region: str) -> int | None:
    """Score a pool in a region: as its likeliest type does; None if none is known there."""
    of_region = scenario.spot_placement.get(region, {})
    pool = set(call.instance_types)
    scores = [_moved(scenario, region, name, at_s=call.at_s) for name in of_region if name in pool]
    if not scores:
        return None
    return min(max(scores), FEW_TYPES_SCORE) if len(pool) < FEW_TYPES else max(scores)


def _moved(scenario: Scenario, region: str, instance_type: str, *, at_s: float) -> int:
    score = scenario.spot_placement[region][instance_type]
    if scenario.movement is None:
        return score
    level = scenario.movement.level(f"spot placement of {instance_type} in {region}", at_s)
    return min(max(score + round(MOVES_BY * level), LOWEST), HIGHEST)
