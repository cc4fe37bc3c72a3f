"""The AWS fakes, through botocore's own clients."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from fleetcast.errors import InvalidConfiguration
from fleetcast.local.aws_fakes import (
    AwsFakes,
    Failure,
    FailureKind,
    Prices,
    Scenario,
    load_scenario,
)

SCENARIO = Scenario(
    prices={
        "us-east-1": {
            "t3.medium": Prices(
                on_demand_usd_per_hour=0.0416,
                spot_usd_per_hour={"us-east-1a": 0.0125, "us-east-1b": 0.0131},
            ),
            "p5.48xlarge": Prices(
                on_demand_usd_per_hour=55.04, spot_usd_per_hour={"us-east-1a": 20.5}
            ),
        },
        "eu-west-1": {"t3.medium": Prices(on_demand_usd_per_hour=0.0456)},
    },
)
ONE_QUICK_TRY = Config(read_timeout=0.3, retries={"total_max_attempts": 1})
LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


class Fakes:
    """Running fakes whose scenario can be changed, and clients of theirs."""

    def __init__(self, server: AwsFakes) -> None:
        self.server = server
        self.scenario = SCENARIO

    def spot_prices(
        self, region: str = "us-east-1", arguments: Mapping[str, Any] | None = None
    ) -> list[tuple[str, str]]:
        """Zone and price of each entry, over all pages."""
        ec2 = boto3.client(
            "ec2", region_name=region, endpoint_url=self.server.url, config=ONE_QUICK_TRY
        )
        pages = ec2.get_paginator("describe_spot_price_history").paginate(**(arguments or {}))
        return [
            (entry["AvailabilityZone"], entry["SpotPrice"])
            for page in pages
            for entry in page["SpotPriceHistory"]
        ]

    def products(self, **attributes: str) -> list[dict[str, Any]]:
        """The price list's entries, over all pages."""
        pricing = boto3.client(
            "pricing",
            region_name="us-east-1",
            endpoint_url=self.server.url,
            config=ONE_QUICK_TRY,
        )
        pages = pricing.get_paginator("get_products").paginate(
            ServiceCode="AmazonEC2",
            Filters=[
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in attributes.items()
            ],
        )
        return [msgspec.json.decode(entry) for page in pages for entry in page["PriceList"]]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    running: Fakes
    with AwsFakes(lambda: running.scenario) as server:
        running = Fakes(server)
        yield running


def usd_of(product: dict[str, Any]) -> float:
    [term] = product["terms"]["OnDemand"].values()
    [dimension] = term["priceDimensions"].values()
    return float(dimension["pricePerUnit"]["USD"])


def test_a_region_tells_its_own_spot_prices(fakes: Fakes) -> None:
    wanted = {
        "Filters": [{"Name": "instance-type", "Values": ["t3.medium", "m8a.nano"]}],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime(2026, 5, 1, tzinfo=UTC),
    }

    assert fakes.spot_prices("us-east-1", wanted) == [
        ("us-east-1a", "0.012500"),
        ("us-east-1b", "0.013100"),
    ]
    assert fakes.spot_prices("eu-west-1", wanted) == []


def test_spot_prices_may_be_asked_for_by_the_types_parameter_too(fakes: Fakes) -> None:
    assert fakes.spot_prices("us-east-1", {"InstanceTypes": ["p5.48xlarge"]}) == [
        ("us-east-1a", "20.500000")
    ]


def test_spot_prices_of_another_product_are_not_linuxs(fakes: Fakes) -> None:
    assert fakes.spot_prices("us-east-1", {"ProductDescriptions": ["Windows"]}) == []


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_pages_hold_everything_once(fakes: Fakes, page_size: int) -> None:
    whole_prices, whole_products = fakes.spot_prices(), fakes.products()
    fakes.scenario = msgspec.structs.replace(SCENARIO, page_size=page_size)

    assert fakes.spot_prices() == whole_prices
    assert fakes.products() == whole_products


def test_the_full_filter_finds_one_product_a_region(fakes: Fakes) -> None:
    found = fakes.products(instanceType="t3.medium", **LINUX)

    prices = {entry["product"]["attributes"]["regionCode"]: usd_of(entry) for entry in found}
    assert prices == {"us-east-1": 0.0416, "eu-west-1": 0.0456}


@pytest.mark.parametrize("forgotten", LINUX)
def test_a_forgotten_filter_finds_other_products_as_well(fakes: Fakes, forgotten: str) -> None:
    filters = {name: value for name, value in LINUX.items() if name != forgotten}

    found = fakes.products(instanceType="t3.medium", regionCode="us-east-1", **filters)

    assert len(found) == 2
    assert len({usd_of(entry) for entry in found} - {0.0416}) == (forgotten != "capacitystatus")


# --- failures ------------------------------------------------------------------------------


def fail(fakes: Fakes, action: str, kind: FailureKind, **narrowed: str) -> None:
    failure = Failure(action=action, kind=kind, **narrowed)
    fakes.scenario = msgspec.structs.replace(SCENARIO, failures=[failure])


def test_a_throttled_answer_of_ec2_is_one_that_botocore_cannot_parse(fakes: Fakes) -> None:
    fail(fakes, "DescribeSpotPriceHistory", "throttled")

    with pytest.raises(ResponseParserError):
        fakes.spot_prices()


def test_a_throttled_answer_of_pricing_is_an_error(fakes: Fakes) -> None:
    fail(fakes, "GetProducts", "throttled")

    with pytest.raises((ClientError, ResponseParserError)):
        fakes.products()


def test_a_denied_call_has_the_code_of_its_service(fakes: Fakes) -> None:
    fail(fakes, "DescribeSpotPriceHistory", "access_denied")
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        fakes.spot_prices()

    fail(fakes, "GetProducts", "access_denied")
    with pytest.raises(ClientError, match="AccessDeniedException"):
        fakes.products()


def test_a_call_that_times_out_is_never_answered(fakes: Fakes) -> None:
    fail(fakes, "DescribeSpotPriceHistory", "timeout")

    with pytest.raises(ReadTimeoutError):
        fakes.spot_prices()


def test_an_answer_of_nothing_is_good_and_empty(fakes: Fakes) -> None:
    fail(fakes, "DescribeSpotPriceHistory", "nothing")
    assert fakes.spot_prices() == []

    fail(fakes, "GetProducts", "nothing")
    assert fakes.products() == []


def test_an_empty_page_leads_on_to_the_others(fakes: Fakes) -> None:
    prices, products = fakes.spot_prices(), fakes.products()

    fail(fakes, "DescribeSpotPriceHistory", "empty_page")
    assert fakes.spot_prices() == prices

    fail(fakes, "GetProducts", "empty_page")
    assert fakes.products() == products


def test_a_failure_strikes_only_the_region_and_type_that_it_names(fakes: Fakes) -> None:
    fail(fakes, "DescribeSpotPriceHistory", "access_denied", region="eu-west-1")
    assert fakes.spot_prices()

    fail(fakes, "GetProducts", "access_denied", instance_type="t3.medium")
    assert fakes.products(instanceType="p5.48xlarge")
    with pytest.raises(ClientError):
        fakes.products(instanceType="t3.medium")


def test_calls_are_counted_by_action_and_region(fakes: Fakes) -> None:
    fakes.spot_prices()
    fakes.spot_prices("eu-west-1")
    fakes.spot_prices("eu-west-1")

    assert fakes.server.calls == {
        ("DescribeSpotPriceHistory", "us-east-1"): 1,
        ("DescribeSpotPriceHistory", "eu-west-1"): 2,
    }


def test_another_action_is_invalid(fakes: Fakes) -> None:
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=fakes.server.url)

    with pytest.raises(ClientError, match="InvalidAction"):
        ec2.describe_vpcs()


def test_a_request_without_a_signature_is_refused(fakes: Fakes) -> None:
    host = fakes.server.url.removeprefix("http://")
    with closing(HTTPConnection(host)) as connection:
        connection.request("POST", "/", b"Action=DescribeSpotPriceHistory")
        answer = connection.getresponse()

        assert answer.status == 400
        assert b"AuthFailure" in answer.read()


# --- the command ---------------------------------------------------------------------------


def test_the_command_answers_from_the_file_as_it_stands_until_it_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    scenario, port_file = tmp_path / "scenario.json", tmp_path / "port"
    scenario.write_bytes(msgspec.json.encode(SCENARIO))
    command = [sys.executable, "-B", "-m", "fleetcast.local.aws_fakes"]
    with subprocess.Popen(
        [*command, "--scenario", str(scenario), "--port-file", str(port_file)],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = f"http://127.0.0.1:{port_file.read_text()}"
            ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=url)
            before = ec2.describe_spot_price_history()["SpotPriceHistory"]
            scenario.write_bytes(msgspec.json.encode(Scenario()))
            after = ec2.describe_spot_price_history()["SpotPriceHistory"]
        finally:
            process.terminate()

    assert url in line
    assert (len(before), len(after)) == (3, 0)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "truncated"),
        ('{"prizes": {}}', "prizes"),
        ('{"page_size": 0}', "page_size"),
        ('{"spot_placement": {"us-east-1": {"t3.medium": 11}}}', "spot_placement"),
        ('{"movement": {"swing": 1}}', "movement.swing"),
        ("[]", "object"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_by_name(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(content)

    with pytest.raises(InvalidConfiguration, match=words) as caught:
        load_scenario(path)

    assert caught.value.key == str(path)
