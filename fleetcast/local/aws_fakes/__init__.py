"""Fakes of the AWS calls that the local emulators lack: spot prices and list prices.

One HTTP server on loopback answers them with the real shapes, out of a scenario: prices,
latency and failures. Clients reach it through AWS_ENDPOINT_URL_EC2 and AWS_ENDPOINT_URL_PRICING.
"""

from fleetcast.local.aws_fakes.scenario import Failure, FailureKind, Prices, Scenario, load_scenario
from fleetcast.local.aws_fakes.server import AwsFakes

__all__ = ["AwsFakes", "Failure", "FailureKind", "Prices", "Scenario", "load_scenario"]
