"""Fakes of the AWS calls that the local emulators lack, for where it is good to launch.

Spot placement scores, spot price history, capacity blocks, list prices. One HTTP server on
loopback answers them with the real shapes, out of a scenario: what is there, how it moves over
time, latency and failures. Clients reach it through AWS_ENDPOINT_URL_EC2 and
AWS_ENDPOINT_URL_PRICING.
"""

from fleetcast.local.aws_fakes.movement import Movement
from fleetcast.local.aws_fakes.plausible import plausible_scenario
from fleetcast.local.aws_fakes.scenario import Failure, FailureKind, Prices, Scenario, load_scenario
from fleetcast.local.aws_fakes.server import AwsFakes

__all__ = [
    "AwsFakes",
    "Failure",
    "FailureKind",
    "Movement",
    "Prices",
    "Scenario",
    "load_scenario",
    "plausible_scenario",
]
