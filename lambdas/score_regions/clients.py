"""The AWS clients that collectors share: one a service and region, made when first asked for."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import UnknownRegionError
from botocore.utils import parse_timestamp

from lambdas.score_regions.collection import MAX_THREADS

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_sqs import SQSClient

    from lambdas.score_regions.connections import Connections

# An answer takes tens of milliseconds; a region that doesn't answer must not hold up the sweep.
CALLS = Config(
    connect_timeout=1,
    read_timeout=4,
    retries={"mode": "adaptive", "total_max_attempts": 3},
    max_pool_connections=MAX_THREADS,
)

# What a sweep uses of AWS's services, made by `make ec2-model`; without it botocore would load and
# parse by the whole models.
MODELS_PATH = Path(__file__).with_name("service_models")

# The Price List API answers for all regions, from a few endpoints only.
PRICING_REGION_BY_CONTINENT = {"ap": "ap-south-1", "eu": "eu-central-1"}
PRICING_REGION = "us-east-1"


def new_session() -> Session:
    """Make a session whose clients are quick to make, know what a sweep uses, and read it fast.

    Of timestamps thousands come with a week's prices, and dateutil takes most of a sweep's CPU for
    them.
    """
    core = botocore.session.get_session()
    core.get_component("data_loader").search_paths.insert(0, str(MODELS_PATH))
    core.get_component("response_parser_factory").set_parser_defaults(
        timestamp_parser=_parse_timestamp
    )
    return boto3.session.Session(botocore_session=core)


def _parse_timestamp(value: Any) -> datetime:  # noqa: ANN401 - text or a number, as it came
    """Parse what botocore parses; the form that EC2 and CloudFormation send, at once."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            if parsed.tzinfo is not None:
                return parsed
    return parse_timestamp(value)


class CallCount:
    """Counts the calls of all clients that a session makes from now on; repeats are one call."""

    def __init__(self, session: Session) -> None:
        self.calls_n = 0
        self._lock = threading.Lock()
        session.events.register("before-call", self._count)

    def _count(self, **_: object) -> None:
        with self._lock:
            self.calls_n += 1


class AwsClients:
    """Clients by service and region. Safe to use from many threads.

    One for all regions would take less to make, but adaptive retries are a client's: a region that
    throttles would slow down the calls to all others. Source: ADR 0009.

    Asking for one raises botocore's UnknownRegionError for a region that AWS can't have.
    """

    def __init__(
        self, session: Session, config: Config = CALLS, *, connections: Connections | None = None
    ) -> None:
        """connections: what carries the calls, in place of botocore's own connections."""
        self._session = session
        self._config = config
        self._connections = connections
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()  # to make a client isn't thread-safe, to use one is

    def is_aws_region(self, region: str) -> bool:
        """Tell whether AWS can have a region of that name; a fleet may have others."""
        try:
            self._session.get_partition_for_region(region)
        except UnknownRegionError:
            return False
        return True

    def cloudformation(self, region: str) -> CloudFormationClient:
        """Return the region's CloudFormation client."""
        client: CloudFormationClient = self._shared("cloudformation", region)
        return client

    def cloudwatch(self, region: str) -> CloudWatchClient:
        """Return the region's CloudWatch client."""
        client: CloudWatchClient = self._shared("cloudwatch", region)
        return client

    def ec2(self, region: str) -> EC2Client:
        """Return the region's EC2 client."""
        client: EC2Client = self._shared("ec2", region)
        return client

    def home_ec2(self) -> EC2Client:
        """Return an EC2 client for what any region answers for all; near if it can be."""
        return self.ec2(self._session.region_name or "us-east-1")

    def sqs(self, region: str) -> SQSClient:
        """Return the region's SQS client."""
        client: SQSClient = self._shared("sqs", region)
        return client

    def pricing(self) -> PricingClient:
        """Return a client of the nearest Price List endpoint."""
        continent = (self._session.region_name or "").partition("-")[0]
        region = PRICING_REGION_BY_CONTINENT.get(continent, PRICING_REGION)
        client: PricingClient = self._shared("pricing", region)
        return client

    def _shared(self, service: Any, region: str) -> Any:  # noqa: ANN401 - typed by the callers
        self._session.get_partition_for_region(region)  # raises for what is no region of AWS
        with self._lock:
            client = self._clients.get((service, region))
            if client is None:
                client = self._session.client(service, region_name=region, config=self._config)
                # Loads the service's pagination rules, here where one thread does it for all.
                client.can_paginate(next(iter(client.meta.method_to_api_mapping)))
                if self._connections is not None:
                    self._connections.carry(client)
                self._clients[service, region] = client
        return client
