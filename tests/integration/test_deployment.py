"""Deploying to the emulator: what the `cdk` command line says when it fails is passed on."""

from pathlib import Path

import pytest

from fleetcast.local.deployment import deploy
from fleetcast.local.emulator import start_emulator
from fleetcast.local.processes import Processes, ProcessFailed


def test_a_wrong_configuration_fails_with_its_key_and_the_place_of_the_whole_log(
    tmp_path: Path,
) -> None:
    wrong = {"regions": [{"name": "us-east-1"}], "default_region": "us-east-1"}
    told: list[str] = []
    with Processes() as processes:
        emulator = start_emulator(processes, tmp_path / "emulator")
        with pytest.raises(ProcessFailed) as failed:
            deploy(wrong, emulator, directory=tmp_path / "deployment", progress=told.append)
    assert "regions[0].nats_url: is missing" in str(failed.value)
    assert str(tmp_path / "deployment" / "synth.log") in str(failed.value)
    assert told == ["synthesising the stack, bootstrapping the account"]
