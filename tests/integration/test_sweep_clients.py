"""The sweep's clients, each with an endpoint to talk to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from fleetcast.local.aws_fakes import AwsFakes, Scenario, ec2
from lambdas.score_regions.clients import CALLS, AwsClients, new_session

if TYPE_CHECKING:
    from fleetcast.local.aws_fakes.call import Answer

SOONER_THAN_THE_LIMITER_S = 2.0


class ThrottlingInOneRegion(AwsFakes):
    """Fakes of which one region answers that it has been asked too often."""

    def answer(self, *, authorization: str, target: str, body: bytes) -> Answer | None:
        if "/us-east-1/ec2/" in authorization:
            return ec2.error("RequestLimitExceeded", "Request limit exceeded.")
        return super().answer(authorization=authorization, target=target, body=body)


def test_a_region_that_throttles_does_not_slow_down_the_calls_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(capacity_blocks={"eu-west-1": {}})
    with ThrottlingInOneRegion(lambda: scenario) as fakes:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_ENDPOINT_URL_EC2": fakes.url,
        }.items():
            monkeypatch.setenv(name, value)
        # As in a sweep, but that a call which is throttled gives up at once.
        once = CALLS.merge(Config(retries={"mode": "adaptive", "total_max_attempts": 1}))
        clients = AwsClients(new_session(), once)

        def ask(region: str) -> None:
            clients.ec2(region).describe_capacity_block_offerings(
                InstanceType="p5.48xlarge", InstanceCount=1, CapacityDurationHours=24
            )

        with pytest.raises(ClientError, match="RequestLimitExceeded"):
            ask("us-east-1")
        began_s = time.monotonic()
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(ask, ["eu-west-1"] * 8))
        assert time.monotonic() - began_s < SOONER_THAN_THE_LIMITER_S
