"""The deployment's configuration: mistakes are told before anything is deployed."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleetcast.errors import InvalidConfiguration
from fleetcast.instance_types import InstanceType
from infra.config import AWS_SERVICES, FleetConfig, read_config

PROJECT = Path(__file__).parent.parent.parent
US = {"name": "us-east-1", "nats_url": "tls://nats.example.com:4222"}
SMALLEST: dict[str, Any] = {"regions": [US], "default_region": "us-east-1"}


def scored_in_pool(*pool: str) -> dict[str, Any]:
    return {
        "scoring": {
            "scored_instance_types": ["t3.nano"],
            "spot_placement_pools": {"t3.nano": list(pool)},
        }
    }


def test_the_smallest_configuration_has_safe_defaults() -> None:
    config = read_config(SMALLEST)
    assert config.retain_tables is True
    assert config.function_platform == "lambda"
    assert config.aws_endpoint_urls == {}
    assert config.vpc is None


def test_cdk_json_is_a_valid_example() -> None:
    context = json.loads((PROJECT / "cdk.json").read_text())["context"]
    assert isinstance(read_config(context["fleetcast"]), FleetConfig)


def test_a_type_that_the_fleet_defines_can_be_scored() -> None:
    config = read_config(
        SMALLEST
        | {
            "instance_types": [{"name": "m8a.nano", "vcpu": 1, "memory_mib": 512}],
            "scoring": {"scored_instance_types": ["m8a.nano"]},
        }
    )
    assert config.instance_types == (InstanceType(name="m8a.nano", vcpu=1, memory_mib=512),)


def test_a_scored_type_can_be_given_a_pool() -> None:
    changes = scored_in_pool("t3.nano", "t3a.nano", "t4g.nano")

    pools = read_config(SMALLEST | changes).scoring.spot_placement_pools
    assert pools == {"t3.nano": ("t3.nano", "t3a.nano", "t4g.nano")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regions": []}, "regions: is empty; expected at least one region"),
        ({"default_region": "mars-1"}, "default_region: is 'mars-1'; expected one of us-east-1"),
        ({"regions": [US, US]}, "regions[1].name: 'us-east-1' comes twice"),
        (
            {"regions": [US, {"name": "eu-west-1"}]},
            "regions[1].nats_url: is missing; expected a URL, tls://host:port",
        ),
        (
            {"regions": [US, {"name": "b", "nats_url": "nats://nats.example.com:4222"}]},
            "regions[1].nats_url: 'nats://nats.example.com:4222' is not encrypted",
        ),
        ({"region": "us-east-1"}, "region: is not a known key; expected one of regions, "),
        ({"sweep_minutes": 0}, "sweep_minutes: is 0; expected a whole number of minutes, 1 to 60"),
        ({"sweep_minutes": "5"}, "sweep_minutes: is '5'; expected a whole number of minutes"),
        ({"log_retention_days": 31}, "log_retention_days: is 31; expected one of 1, 3, 5, 7"),
        (
            {"function_platform": "x86"},
            "function_platform: is 'x86'; expected one of lambda, local",
        ),
        ({"retain_tables": "yes"}, "retain_tables: is 'yes'; expected true or false"),
        (
            {"aws_endpoint_urls": {"s3": "http://127.0.0.1"}},
            f"aws_endpoint_urls.s3: is 's3'; expected one of {', '.join(AWS_SERVICES)}",
        ),
        ({"aws_endpoint_urls": {"ec2": "localhost"}}, "aws_endpoint_urls.ec2: is 'localhost'"),
        (
            {"vpc": {"subnet_ids": [], "security_group_ids": ["sg-1"]}},
            "vpc.subnet_ids: is empty; expected at least one id",
        ),
        (
            {"vpc": {"subnet_ids": ["vpc-1"], "security_group_ids": ["sg-1"]}},
            "vpc.subnet_ids[0]: is 'vpc-1'; expected a subnet id",
        ),
        (
            {"scoring": {"scored_instance_types": ["t3.medium", "t3.mediun"]}},
            "scoring.scored_instance_types[1]: is 't3.mediun'; expected one of EC2's",
        ),
        (
            {"scoring": {"spot_placement_pools": {"t3.nano": ["t3.nano"] * 3}}},
            "scoring.spot_placement_pools.t3.nano: 't3.nano' is not scored; expected one of",
        ),
        (
            scored_in_pool("t3.nano", "t3a.nano", "t3.nano"),
            "scoring.spot_placement_pools.t3.nano: has 2; expected at least 3 different",
        ),
        (
            scored_in_pool("t3.nano", "t3a.nano", "t9.nano"),
            "scoring.spot_placement_pools.t3.nano[2]: is 't9.nano'; expected one of EC2's",
        ),
        (
            {"scoring": {"weights": {"spot_placement": 1}}},
            "scoring.weights.spot_price_ratio: is missing; expected a number",
        ),
        (
            {"instance_types": [{"name": "t3.medium", "vcpu": 9, "memory_mib": 1}]},
            "instance_types[0].name: t3.medium is already defined",
        ),
        (
            {"launching": {"max_score_age_s": 60}, "sweep_minutes": 5},
            "launching.max_score_age_s: 60 s is less than a sweep's interval",
        ),
    ],
)
def test_a_mistake_is_told_with_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        read_config(SMALLEST | changes)
    assert str(refused.value).startswith(message)


def test_an_absent_configuration_says_where_it_belongs() -> None:
    with pytest.raises(InvalidConfiguration, match=r"cdk\.json"):
        read_config(None)
