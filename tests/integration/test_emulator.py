"""The AWS emulator as a child process: it answers, stays in its folder, and goes."""

import os
from pathlib import Path

import boto3
import pytest

from fleetcast.local.emulator import ACCOUNT_ID, Emulator, start_emulator
from fleetcast.local.processes import Processes


def test_an_emulator_answers_as_an_aws_account_and_is_gone_afterwards(tmp_path: Path) -> None:
    with Processes() as processes:
        emulator = start_emulator(processes, tmp_path / "emulator")
        environment = emulator.environment()
        sts = boto3.client(
            "sts",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            region_name=environment["AWS_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )
        assert sts.get_caller_identity()["Account"] == ACCOUNT_ID
        os.kill(emulator.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(emulator.pid, 0)


def test_a_public_api_url_becomes_the_emulators() -> None:
    emulator = Emulator(port=4566, region="us-east-1", pid=1)
    public = "https://0d0482b4.execute-api.us-east-1.amazonaws.com/prod/"
    assert emulator.local_api_url(public) == "http://127.0.0.1:4566/_aws/execute-api/0d0482b4/prod/"
