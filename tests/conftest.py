"""What all suites share: no real AWS account in reach, and a real NATS server."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from fleetcast.local.nats_server import NatsServer
from fleetcast.local.nats_server import nats_server as running_nats_server

if TYPE_CHECKING:
    from collections.abc import Iterator

# Set when this is imported, before any test module can make a client.
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ |= {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

# A shell that runs this in its background has its programs ignore Ctrl-C, and theirs with them.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """One server for all tests that leave no trace on it: give each test its own subjects."""
    with running_nats_server() as server:
        yield server
