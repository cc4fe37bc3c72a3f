"""The price collectors against answers of their AWS APIs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.stub import Stubber

from fleetcast.scoring import Reading
from lambdas.score_regions.clients import AwsClients
from lambdas.score_regions.collection import collect
from lambdas.score_regions.signals.on_demand_prices import on_demand_price_probe
from lambdas.score_regions.signals.spot_prices import spot_price_probe

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()


@contextmanager
def answering(client: BaseClient, *answers: tuple[str, dict[str, Any]]) -> Iterator[None]:
    """Let a client answer its calls so, in this order, and no more of them."""
    with Stubber(client) as stubber:
        for action, answer in answers:
            stubber.add_response(action, answer)
        yield
        stubber.assert_no_pending_responses()


def seen(value: float, at: datetime = NOW) -> Reading:
    return Reading.of(value, observed_at_s=at.timestamp())


def missing() -> Reading:
    return Reading.absent("missing", "not in the answer")


# --- spot prices ---------------------------------------------------------------------------


def price(
    zone: str, usd: str, *, minutes_ago: int = 60, instance_type: str = "t3.medium"
) -> dict[str, Any]:
    return {
        "InstanceType": instance_type,
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": usd,
        "Timestamp": NOW - timedelta(minutes=minutes_ago),
        "AvailabilityZone": zone,
    }


def history(*prices: dict[str, Any], next_page: str = "") -> tuple[str, dict[str, Any]]:
    return "describe_spot_price_history", {"SpotPriceHistory": list(prices), "NextToken": next_page}


def spot_prices(
    clients: AwsClients, *answers: tuple[str, dict[str, Any]], types: tuple[str, ...]
) -> dict[str | None, Reading]:
    with answering(clients.ec2("us-east-1"), *answers):
        readings = collect(
            [spot_price_probe("us-east-1", types, clients, now_s=NOW_S)], timeout_s=30
        ).readings
    return {key.instance_type: reading for key, reading in readings.items()}


def test_a_spot_price_is_the_mean_over_zones_and_pages(clients: AwsClients) -> None:
    readings = spot_prices(
        clients,
        history(price("us-east-1a", "0.010"), next_page="1"),
        history(next_page="2"),  # EC2 filters late: a page may be empty and not be the last
        history(
            price("us-east-1b", "0.020"), price("us-east-1a", "1", instance_type="p5.48xlarge")
        ),
        types=("t3.medium", "p5.48xlarge", "m8a.nano"),
    )

    assert readings == {"t3.medium": seen(0.015), "p5.48xlarge": seen(1.0), "m8a.nano": missing()}


def test_a_zones_newest_entry_is_its_price(clients: AwsClients) -> None:
    readings = spot_prices(
        clients,
        history(
            price("us-east-1a", "0.5", minutes_ago=90),
            price("us-east-1a", "0.1", minutes_ago=5),
            price("us-east-1a", "0.9", minutes_ago=50),
        ),
        types=("t3.medium",),
    )

    assert readings == {"t3.medium": seen(0.1)}


@pytest.mark.parametrize("usd", ["0", "-1", "nan", "inf"])
def test_a_spot_price_that_is_no_price_fails_alone(clients: AwsClients, usd: str) -> None:
    readings = spot_prices(
        clients,
        history(price("us-east-1a", usd), price("us-east-1a", "1", instance_type="c7i.large")),
        types=("t3.medium", "c7i.large"),
    )

    assert readings["t3.medium"].status == "failed"
    assert readings["c7i.large"] == seen(1.0)


def test_more_types_than_a_filter_holds_are_asked_for_in_turns(clients: AwsClients) -> None:
    types = tuple(f"x{number}.large" for number in range(201))
    readings = spot_prices(
        clients,
        history(price("us-east-1a", "1", instance_type="x0.large")),
        history(price("us-east-1a", "2", instance_type="x200.large")),
        types=types,
    )

    assert (readings["x0.large"], readings["x200.large"]) == (seen(1), seen(2))


# --- on-demand prices ----------------------------------------------------------------------


def listing(region: str, usd: str | None, *, unit: str = "Hrs", currency: str = "USD") -> str:
    """An entry of the price list; usd None: it has reserved terms only."""
    dimension = {"unit": unit, "pricePerUnit": {currency: usd}, "description": "on demand"}
    on_demand = {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}, "sku": "SKU"}}
    return json.dumps(
        {
            "product": {"sku": "SKU", "attributes": {"regionCode": region, "vcpu": "2"}},
            "serviceCode": "AmazonEC2",
            "terms": {"Reserved": {}} | ({"OnDemand": on_demand} if usd is not None else {}),
        }
    )


def products(*listings: str, next_page: str | None = None) -> tuple[str, dict[str, Any]]:
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": list(listings)}
    return "get_products", answer | ({"NextToken": next_page} if next_page else {})


def on_demand(
    clients: AwsClients, *answers: tuple[str, dict[str, Any]], regions: tuple[str, ...]
) -> dict[str, Reading]:
    with answering(clients.pricing(), *answers):
        readings = collect(
            [on_demand_price_probe("t3.medium", regions, clients, now_s=NOW_S)], timeout_s=30
        ).readings
    return {key.region: reading for key, reading in readings.items()}


def test_one_answer_prices_a_type_in_all_regions(clients: AwsClients) -> None:
    readings = on_demand(
        clients,
        products(listing("us-east-1", "0.0416"), listing("us-west-2-lax-1", "9"), next_page="more"),
        products(listing("eu-west-1", "0.0456")),
        regions=("us-east-1", "eu-west-1", "lab-1"),
    )

    assert readings == {"us-east-1": seen(0.0416), "eu-west-1": seen(0.0456), "lab-1": missing()}


def test_of_two_on_demand_prices_the_one_that_flatters_spot_less_counts(
    clients: AwsClients,
) -> None:
    readings = on_demand(
        clients,
        products(listing("us-east-1", "2"), listing("us-east-1", "1")),
        regions=("us-east-1",),
    )

    assert readings == {"us-east-1": seen(1)}


@pytest.mark.parametrize(
    "useless",
    [
        listing("us-east-1", None),
        listing("us-east-1", "0.04", currency="CNY"),
        listing("us-east-1", "365", unit="Quantity"),
    ],
)
def test_a_listing_without_an_hourly_dollar_price_is_passed_over(
    clients: AwsClients, useless: str
) -> None:
    assert on_demand(clients, products(useless), regions=("us-east-1",)) == {"us-east-1": missing()}


@pytest.mark.parametrize("broken", ["{}", "not JSON", listing("us-east-1", "abc")])
def test_a_listing_of_another_form_fails_the_type(clients: AwsClients, broken: str) -> None:
    readings = on_demand(clients, products(broken), regions=("us-east-1",))

    assert readings["us-east-1"].status == "failed"


def test_only_shared_linux_on_demand_without_software_is_asked_for(clients: AwsClients) -> None:
    with Stubber(clients.pricing()) as stubber:
        wanted = {
            "instanceType": "t3.medium",
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
        }
        filters = [
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in wanted.items()
        ]
        stubber.add_response(
            "get_products",
            products()[1],
            {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": filters},
        )
        collect(
            [on_demand_price_probe("t3.medium", ("us-east-1",), clients, now_s=NOW_S)],
            timeout_s=30,
        )
        stubber.assert_no_pending_responses()


# --- clients -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "endpoint"),
    [
        ("us-west-2", "us-east-1"),
        ("eu-west-1", "eu-central-1"),
        ("ap-northeast-1", "ap-south-1"),
        ("sa-east-1", "us-east-1"),
    ],
)
@pytest.mark.usefixtures("clients")
def test_prices_are_asked_for_at_the_nearest_endpoint(home: str, endpoint: str) -> None:
    clients = AwsClients(boto3.session.Session(region_name=home))

    assert clients.pricing().meta.region_name == endpoint


def test_a_region_that_aws_cannot_have_has_no_spot_prices(clients: AwsClients) -> None:
    [reading] = collect(
        [spot_price_probe("lab-1", ("t3.medium",), clients, now_s=NOW_S)], timeout_s=30
    ).readings.values()

    assert reading.status == "missing"


def test_clients_are_shared(clients: AwsClients) -> None:
    assert clients.sqs("us-east-1") is clients.sqs("us-east-1")
    assert clients.sqs("us-east-1") is not clients.sqs("eu-west-1")
