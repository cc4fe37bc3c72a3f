"""Fixtures of the unit tests."""

import boto3
import pytest

from lambdas.score_regions.clients import AwsClients


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> AwsClients:
    """The sweep's clients, not connected to anything: stub the ones that are to answer."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return AwsClients(boto3.session.Session(region_name="us-east-1"))
