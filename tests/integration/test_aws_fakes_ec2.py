"""Spot placement, spot price history and capacity blocks of the AWS fakes, through botocore."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import boto3
import msgspec
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from fleetcast.local.aws_fakes import AwsFakes, Failure, Movement, Prices, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import CapacityBlockOfferingTypeDef

    from fleetcast.local.aws_fakes import FailureKind

NOW: Final = datetime(2026, 5, 1, 12, tzinfo=UTC)
WEEK: Final = timedelta(days=7)
POOL: Final = ("t3.medium", "t3a.medium", "t2.medium")
SCENARIO: Final = Scenario(
    prices={"us-east-1": {"t3.medium": Prices(spot_usd_per_hour={"us-east-1a": 0.01})}},
    spot_placement={
        "us-east-1": {"t3.medium": 5, "t3a.medium": 8},
        "eu-west-1": {"t2.medium": 9},
        "ap-south-1": {"c7g.large": 10},
    },
    capacity_blocks={"us-east-1": {"p5.48xlarge": (2, 0, 9)}},
)
ONE_QUICK_TRY: Final = Config(read_timeout=0.3, retries={"total_max_attempts": 1})


class Fakes:
    """Running fakes whose scenario and time can be changed."""

    scenario = SCENARIO
    now = NOW

    def __init__(self) -> None:
        self.server = AwsFakes(lambda: self.scenario, clock_s=self.now_s)

    def now_s(self) -> float:
        return self.now.timestamp()

    def change(self, **changed: object) -> None:
        self.scenario = msgspec.structs.replace(self.scenario, **changed)

    def ec2(self, region: str = "us-east-1") -> EC2Client:
        return boto3.client(
            "ec2", region_name=region, endpoint_url=self.server.url, config=ONE_QUICK_TRY
        )

    def scores(self, *types: str, capacity: int = 1, regions: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - compared as it is
        pages = (
            self.ec2()
            .get_paginator("get_spot_placement_scores")
            .paginate(
                InstanceTypes=types or POOL,
                TargetCapacity=capacity,
                SingleAvailabilityZone=False,
                RegionNames=regions,
            )
        )
        return [
            (one["Region"], one["Score"]) for page in pages for one in page["SpotPlacementScores"]
        ]

    def blocks(
        self, region: str = "us-east-1", instance_type: str = "p5.48xlarge", **arguments: datetime
    ) -> list[CapacityBlockOfferingTypeDef]:
        pages = (
            self.ec2(region)
            .get_paginator("describe_capacity_block_offerings")
            .paginate(
                InstanceType=instance_type,
                InstanceCount=1,
                CapacityDurationHours=24,
                **arguments,  # type: ignore[arg-type] # the dates that are given
            )
        )
        return [one for page in pages for one in page["CapacityBlockOfferings"]]

    def history(self, start: datetime) -> list[tuple[datetime, float]]:
        pages = self.ec2().get_paginator("describe_spot_price_history").paginate(StartTime=start)
        return [
            (entry["Timestamp"], float(entry["SpotPrice"]))
            for page in pages
            for entry in page["SpotPriceHistory"]
        ]


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    running = Fakes()
    with running.server:
        yield running


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return caught.value.response["Error"]["Code"]


# --- spot placement ------------------------------------------------------------------------


def test_a_pool_scores_as_its_likeliest_type_and_only_where_one_is_known(fakes: Fakes) -> None:
    assert fakes.scores() == [("eu-west-1", 9), ("us-east-1", 8)]
    assert fakes.scores(regions=("us-east-1", "ap-south-1")) == [("us-east-1", 8)]


def test_a_pool_of_fewer_than_three_types_scores_low(fakes: Fakes) -> None:
    assert fakes.scores("t3.medium", "t3a.medium") == [("us-east-1", 3)]


@pytest.mark.parametrize("page_size", [3, 100])
def test_the_ten_best_of_all_regions_come_back(fakes: Fakes, page_size: int) -> None:
    scores = {f"region-{n}": n % 10 + 1 for n in range(14)}
    placement = {name: {"t3.medium": score} for name, score in scores.items()}
    fakes.change(spot_placement=placement, page_size=page_size)

    answered = fakes.scores()

    assert len(answered) == 10
    assert dict(answered).items() <= scores.items()
    assert min(score for _, score in answered) >= max(
        score for name, score in scores.items() if name not in dict(answered)
    )


def test_more_than_ten_regions_cannot_be_asked_for(fakes: Fakes) -> None:
    with pytest.raises(ClientError) as caught:
        fakes.scores(regions=tuple(f"region-{n}" for n in range(11)))
    assert code_of(caught) == "InvalidParameterValue"


def test_only_configurations_of_the_last_day_are_free_once_the_limit_is_reached(
    fakes: Fakes,
) -> None:
    fakes.change(spot_placement_configurations=2)
    fakes.scores()
    fakes.scores(capacity=2)
    for new in ({"capacity": 3}, {"regions": ("us-east-1",)}):
        with pytest.raises(ClientError) as caught:
            fakes.scores(**new)
        assert code_of(caught) == "MaxConfigLimitExceeded"
    assert fakes.scores(*reversed(POOL))  # the same configuration

    fakes.now += timedelta(days=1)
    assert fakes.scores(capacity=3)


def test_scores_move_over_time_and_stay_between_1_and_10(fakes: Fakes) -> None:
    fakes.change(movement=Movement())
    seen = set()
    for hours in range(0, 96, 6):
        fakes.now = NOW + timedelta(hours=hours)
        seen.add(dict(fakes.scores())["eu-west-1"])
    assert len(seen) > 2
    assert seen <= set(range(1, 11))


# --- spot price history --------------------------------------------------------------------


def test_a_week_of_history_moves_and_goes_on_from_the_price_before_it(fakes: Fakes) -> None:
    fakes.change(movement=Movement(), page_size=10)

    history = fakes.history(NOW - WEEK)

    times = [at for at, _ in history]
    assert times == sorted(times, reverse=True)
    assert [at for at in times if at <= NOW - WEEK] == times[-1:]
    assert 35 <= len(history) <= 49  # about six changes a day
    assert len({price for _, price in history}) > 30
    assert all(0.008 <= price <= 0.012 for _, price in history)


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(minutes=1)])
def test_a_start_of_now_gives_the_price_that_holds_now(fakes: Fakes, ahead: timedelta) -> None:
    fakes.change(movement=Movement())
    assert fakes.history(NOW + ahead) == fakes.history(NOW - WEEK)[:1]


def test_history_does_not_change_once_it_has_been_told(fakes: Fakes) -> None:
    fakes.change(movement=Movement())
    before = fakes.history(NOW - WEEK)
    fakes.now += timedelta(days=1)
    assert fakes.history(NOW - WEEK)[-len(before) :] == before


# --- capacity blocks -----------------------------------------------------------------------


def weeks_of(blocks: list[CapacityBlockOfferingTypeDef]) -> list[int]:
    return [(block["StartDate"] - NOW) // WEEK for block in blocks]


@pytest.mark.parametrize("page_size", [2, 100])
def test_blocks_start_in_the_weeks_that_the_scenario_says(fakes: Fakes, page_size: int) -> None:
    fakes.change(page_size=page_size)

    blocks = fakes.blocks()

    assert weeks_of(blocks) == [0] * 2 + [2] * 9
    assert len({block["CapacityBlockOfferingId"] for block in blocks}) == 11
    for block in blocks:
        assert block["EndDate"] - block["StartDate"] == timedelta(hours=24)
        assert float(block["UpfrontFee"]) > 0


def test_blocks_are_narrowed_to_the_dates_asked_for(fakes: Fakes) -> None:
    assert weeks_of(fakes.blocks(EndDateRange=NOW + WEEK)) == [0, 0]
    assert weeks_of(fakes.blocks(StartDateRange=NOW + WEEK)) == [2] * 9


def test_a_region_without_blocks_says_that_it_does_not_offer_them(fakes: Fakes) -> None:
    with pytest.raises(ClientError) as caught:
        fakes.blocks("eu-west-1")
    assert code_of(caught) == "UnsupportedOperation"


def test_a_type_that_is_not_sold_as_blocks_is_refused_and_one_without_any_has_none(
    fakes: Fakes,
) -> None:
    with pytest.raises(ClientError) as caught:
        fakes.blocks(instance_type="t3.medium")
    assert code_of(caught) == "InvalidParameterValue"
    assert fakes.blocks(instance_type="trn1.32xlarge") == []


def test_counts_of_blocks_move_over_time(fakes: Fakes) -> None:
    fakes.change(
        capacity_blocks={"us-east-1": {"p5.48xlarge": (6,) * 8}}, movement=Movement(swing=0.9)
    )
    counts = set()
    for days in range(4):
        fakes.now = NOW + timedelta(days=days)
        counts.add(len(fakes.blocks()))
    assert len(counts) > 2


# --- failures, of every call ---------------------------------------------------------------

CALLS: Final = {
    "GetSpotPlacementScores": lambda fakes: fakes.scores(),
    "DescribeSpotPriceHistory": lambda fakes: fakes.history(NOW),
    "DescribeCapacityBlockOfferings": lambda fakes: fakes.blocks(),
}


@pytest.mark.parametrize("action", CALLS)
@pytest.mark.parametrize(
    ("kind", "raised", "words"),
    [
        ("throttled", ResponseParserError, "invalid XML"),
        ("access_denied", ClientError, "UnauthorizedOperation"),
        ("timeout", ReadTimeoutError, "Read timeout"),
        ("invalid_action", ClientError, "InvalidAction"),
    ],
)
def test_any_call_can_be_made_to_fail(
    fakes: Fakes, action: str, kind: FailureKind, raised: type[Exception], words: str
) -> None:
    fakes.change(failures=[Failure(action=action, kind=kind)])
    with pytest.raises(raised, match=words):
        CALLS[action](fakes)


@pytest.mark.parametrize("action", CALLS)
def test_any_call_can_be_answered_by_nothing_or_by_an_empty_page_first(
    fakes: Fakes, action: str
) -> None:
    whole = CALLS[action](fakes)
    fakes.change(failures=[Failure(action=action, kind="empty_page")])
    assert CALLS[action](fakes) == whole
    fakes.change(failures=[Failure(action=action, kind="nothing")])
    assert CALLS[action](fakes) == []


@pytest.mark.parametrize("action", CALLS)
def test_any_call_can_be_late(fakes: Fakes, action: str) -> None:
    fakes.change(latency_s={action: 60.0})
    with pytest.raises(ReadTimeoutError):
        CALLS[action](fakes)


@pytest.mark.parametrize(
    ("method", "arguments", "parameter"),
    [
        ("get_spot_placement_scores", {"TargetCapacity": 1}, "InstanceType"),
        (
            "describe_capacity_block_offerings",
            {"CapacityDurationHours": 24, "InstanceCount": 1},
            "InstanceType",
        ),
    ],
)
def test_a_parameter_that_is_missing_is_named(
    fakes: Fakes, method: str, arguments: dict[str, int], parameter: str
) -> None:
    with pytest.raises(ClientError, match=f"MissingParameter.*{parameter}"):
        getattr(fakes.ec2(), method)(**arguments)
