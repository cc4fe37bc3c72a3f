"""What the fakes answer: prices by region and type, how late, and which calls fail how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import msgspec

from fleetcast.errors import InvalidConfiguration
from fleetcast.local.aws_fakes.movement import Movement

if TYPE_CHECKING:
    from pathlib import Path

    from fleetcast.local.aws_fakes.call import Call

FailureKind: TypeAlias = Literal[
    "throttled",  # HTTP 503 with a body that is neither XML nor JSON
    "access_denied",
    "timeout",  # never answered
    "invalid_action",  # the endpoint doesn't know the action, as in regions without the feature
    "nothing",  # a good answer that holds nothing
    "empty_page",  # a first page that holds nothing, and a token that leads on
]


PlacementScore: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10)]


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One type's prices in one region, US dollars an hour. None or no zone: not sold there."""

    on_demand_usd_per_hour: float | None = None
    spot_usd_per_hour: dict[str, float] = {}  # by availability zone


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make the calls of one action fail; region and instance_type narrow down which."""

    action: str
    kind: FailureKind
    region: str | None = None
    instance_type: str | None = None

    def strikes(self, call: Call) -> bool:
        """Whether this call is to fail."""
        return (
            self.action == call.action
            and self.region in {None, call.region}
            and (self.instance_type is None or self.instance_type in call.instance_types)
        )


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the fakes know, by region, then instance type.

    spot_placement: a pool scores as its likeliest type. spot_placement_configurations: how many
    may be asked for in 24 hours. capacity_blocks: how many can be bought that start in each week
    from now; a region that isn't there offers none to anybody. movement: None: nothing moves.
    page_size: entries an answer at most, >= 1. latency_s: seconds that each call of an action
    takes, by action.
    """

    prices: dict[str, dict[str, Prices]] = {}
    spot_placement: dict[str, dict[str, PlacementScore]] = {}
    spot_placement_configurations: int | None = None
    capacity_blocks: dict[str, dict[str, tuple[int, ...]]] = {}
    movement: Movement | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1)] = 100
    latency_s: dict[str, float] = {}
    failures: list[Failure] = []

    def failure_of(self, call: Call) -> FailureKind | None:
        """How this call is to fail, or None: the first failure that strikes it."""
        return next((failure.kind for failure in self.failures if failure.strikes(call)), None)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a JSON file; whoever changes a file in use must rename it into place.

    Raises InvalidConfiguration, naming the file and the place in it, if it is no scenario.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scenario)
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(
            str(path), str(error), expected="a scenario of the AWS fakes"
        ) from error
