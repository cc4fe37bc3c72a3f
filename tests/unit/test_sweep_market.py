"""The collectors of spot placement, price trends and capacity blocks against AWS's answers."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from botocore.stub import Stubber

from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey, collect
from lambdas.score_regions.signals.capacity_blocks import capacity_blocks_probe, is_sold_as_blocks
from lambdas.score_regions.signals.spot_placement import spot_placement_probe
from lambdas.score_regions.signals.spot_price_trends import PRICES_KEPT, spot_price_trend_probe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from botocore.client import BaseClient

    from lambdas.score_regions.clients import AwsClients

# A bin of PRICES_KEPT begins then.
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()
POOL = ("c5.large", "c6i.large", "t3.medium")


@contextmanager
def answering(
    client: BaseClient, action: str, *exchanges: tuple[dict[str, Any], dict[str, Any] | None]
) -> Iterator[None]:
    """Let a client answer its calls so, in this order, and no more; None takes any parameters."""
    with Stubber(client) as stubber:
        for answer, expected in exchanges:
            stubber.add_response(action, answer, expected)
        yield
        stubber.assert_no_pending_responses()


def read(probe: Probe) -> Mapping[SignalKey, Reading]:
    return collect([probe], timeout_s=30).readings


def seen(value: float) -> Reading:
    return Reading.of(value, observed_at_s=NOW_S)


# --- spot placement ------------------------------------------------------------------------


def scores(next_page: str | None = None, **by_region: int) -> dict[str, Any]:
    entries = [
        {"Region": region.replace("_", "-"), "Score": score} for region, score in by_region.items()
    ]
    return {"SpotPlacementScores": entries} | ({"NextToken": next_page} if next_page else {})


def placements(
    clients: AwsClients,
    *exchanges: tuple[dict[str, Any], dict[str, Any] | None],
    regions: tuple[str, ...],
    types: tuple[str, ...] = ("t3.medium",),
) -> dict[tuple[str, str | None], Reading]:
    with answering(clients.ec2("us-east-1"), "get_spot_placement_scores", *exchanges):
        readings = read(spot_placement_probe(POOL, types, regions, clients, now_s=NOW_S))
    return {(key.region, key.instance_type): reading for key, reading in readings.items()}


def test_one_call_scores_a_pool_in_all_regions_for_all_types_that_share_it(
    clients: AwsClients,
) -> None:
    wanted = {
        "InstanceTypes": list(POOL),
        "TargetCapacity": 1,
        "SingleAvailabilityZone": False,
        "RegionNames": ["us-east-1", "eu-west-1", "sa-east-1"],
    }
    readings = placements(
        clients,
        (scores(next_page="more", us_east_1=9), wanted),
        (scores(eu_west_1=1), None),
        regions=("us-east-1", "eu-west-1", "sa-east-1"),
        types=("t3.medium", "c5.large"),
    )

    for instance_type in ("t3.medium", "c5.large"):
        assert readings["us-east-1", instance_type] == seen(0.9)
        assert readings["eu-west-1", instance_type] == seen(0.1)
        assert readings["sa-east-1", instance_type] == Reading.absent(
            "missing", "not in the answer"
        )


def test_too_many_configurations_are_a_refusal(clients: AwsClients) -> None:
    with Stubber(clients.ec2("us-east-1")) as stubber:
        stubber.add_client_error("get_spot_placement_scores", "MaxConfigLimitExceeded", "wait")
        probe = spot_placement_probe(POOL, ["t3.medium"], ["us-east-1"], clients, now_s=NOW_S)
        [reading] = read(probe).values()

    assert reading.status == "refused"
    assert "wait" in (reading.error or "")


# --- capacity blocks -----------------------------------------------------------------------


def offerings(*days: float, next_page: str | None = None) -> dict[str, Any]:
    entries = [
        {"CapacityBlockOfferingId": f"cbr-{day}", "StartDate": NOW + timedelta(days=day)}
        for day in days
    ]
    return {"CapacityBlockOfferings": entries} | ({"NextToken": next_page} if next_page else {})


def blocks(
    clients: AwsClients, *exchanges: tuple[dict[str, Any], dict[str, Any] | None]
) -> dict[str, Reading]:
    with answering(clients.ec2("us-east-1"), "describe_capacity_block_offerings", *exchanges):
        readings = read(capacity_blocks_probe("us-east-1", "p5.48xlarge", clients, now_s=NOW_S))
    return {key.signal: reading for key, reading in readings.items()}


def test_offers_of_all_pages_are_counted_by_the_week_in_which_they_start(
    clients: AwsClients,
) -> None:
    wanted = {
        "InstanceType": "p5.48xlarge",
        "InstanceCount": 1,
        "CapacityDurationHours": 24,
        "StartDateRange": NOW,
        "EndDateRange": NOW + timedelta(weeks=26),
    }
    first = [0.5] * 5
    second = [7.5] * 5
    readings = blocks(
        clients,
        (offerings(*first, next_page="more"), wanted),
        (offerings(next_page="even more"), None),
        (offerings(*second), None),
    )

    # The reference number of "weeks 0 and 1 hold 5 each, the rest 0".
    assert readings == {
        "capacity_block_offers": seen(10),
        "capacity_block_window_trend": seen(-1),
    }


def test_an_answer_without_offers_is_no_better_than_where_none_are_sold(
    clients: AwsClients,
) -> None:
    nothing = Reading.absent("not_offered", "no capacity block is on offer")
    assert blocks(clients, (offerings(), None)) == {
        "capacity_block_offers": nothing,
        "capacity_block_window_trend": nothing,
    }


def test_what_starts_outside_the_weeks_that_were_asked_for_is_not_counted(
    clients: AwsClients,
) -> None:
    readings = blocks(clients, (offerings(-1, 3, 26 * 7), None))

    assert readings["capacity_block_offers"] == seen(1)


@pytest.mark.parametrize(
    ("name", "sold"),
    [
        ("p5.48xlarge", True),
        ("p6-b200.48xlarge", True),
        ("trn2.48xlarge", True),
        ("t3.medium", False),
        ("g5.xlarge", False),
        ("pz9x", False),
    ],
)
def test_only_types_of_the_p_and_trn_families_are_sold_as_blocks(name: str, sold: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert is_sold_as_blocks(name) == sold


# --- price trends --------------------------------------------------------------------------


def price(days_ago: float, usd: float, *, zone: str = "us-east-1a") -> dict[str, Any]:
    return {
        "InstanceType": "t3.medium",
        "AvailabilityZone": zone,
        "SpotPrice": str(usd),
        "Timestamp": NOW - timedelta(days=days_ago),
    }


def trends(
    clients: AwsClients,
    *prices: dict[str, Any],
    past: Mapping[str, Mapping[int, float]] | None = None,
) -> dict[str | None, Reading]:
    answer = {"SpotPriceHistory": list(prices), "NextToken": ""}
    wanted = {
        "ProductDescriptions": ["Linux/UNIX"],
        "Filters": [{"Name": "instance-type", "Values": list(past or {"t3.medium": {}})}],
        "StartTime": NOW - timedelta(days=7),
    }
    with answering(clients.ec2("us-east-1"), "describe_spot_price_history", (answer, wanted)):
        readings = read(
            spot_price_trend_probe("us-east-1", past or {"t3.medium": {}}, clients, now_s=NOW_S)
        )
    return {key.instance_type: reading for key, reading in readings.items()}


def rising(*, per_day: float, zone: str = "us-east-1a") -> list[dict[str, Any]]:
    """A price that is 1 dollar now, and changes every six hours, the newest first."""
    return [price(quarter / 4, 1 - per_day * quarter / 4, zone=zone) for quarter in range(29)]


def test_a_trend_is_the_change_a_week_over_the_mean(clients: AwsClients) -> None:
    readings = trends(clients, *rising(per_day=0.01))

    # 0.965 is the mean of a week that ends at 1 and began at 0.93.
    assert readings["t3.medium"] == seen(round(0.07 / 0.965, 4))


def test_a_price_holds_until_it_changes(clients: AwsClients) -> None:
    # It has been 1 for long, and has doubled half a week ago.
    up = trends(clients, price(3.5, 2), price(30, 1))["t3.medium"]
    down = trends(clients, price(3.5, 1), price(30, 2))["t3.medium"]
    flat = trends(clients, price(30, 1))["t3.medium"]

    assert up.value is not None
    assert down.value is not None
    assert up.value > 0.9
    assert down.value < -0.9
    assert flat == seen(0)


def test_the_zones_of_a_region_are_averaged(clients: AwsClients) -> None:
    opposite = trends(
        clients,
        *rising(per_day=0.01),
        *[price(quarter / 4, 1 + 0.01 * quarter / 4, zone="us-east-1b") for quarter in range(29)],
    )

    assert opposite["t3.medium"] == seen(0)


def test_what_sweeps_saw_before_counts_too(clients: AwsClients) -> None:
    today = int(NOW_S // PRICES_KEPT.bin_s)
    cheaper_before = {today - bins: 0.5 for bins in range(29, 56)}

    flat_week = trends(clients, price(30, 1), past={"t3.medium": cheaper_before})

    assert (flat_week["t3.medium"].value or 0) > 0.1


def test_a_type_without_spot_prices_has_no_trend_and_that_is_an_answer(
    clients: AwsClients,
) -> None:
    readings = trends(clients, price(1, 1), past={"t3.medium": {}, "m8a.nano": {}})

    assert readings["t3.medium"] == seen(0)
    assert readings["m8a.nano"].status == "not_offered"
