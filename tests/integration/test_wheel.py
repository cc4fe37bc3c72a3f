"""The wheel that nodes install: whole, and no more than a node needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

PROJECT = Path(__file__).resolve().parents[2]

# Runs where the wheel is found and the checkout is not.
RUN_AGENT_COMMAND = """
import sys
from click.testing import CliRunner
from fleetcast.agent import command
from fleetcast.instance_types import ec2_catalogue

assert sys.argv[1] in command.__file__, command.__file__
assert ec2_catalogue().lookup("t3.medium").vcpu == 2
result = CliRunner().invoke(command.main, ["run", "--help"])
assert result.exit_code == 0, result.output
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = str(tmp_path_factory.mktemp("wheel"))
    (built,) = WheelBuilder(str(PROJECT)).build(directory=folder, versions=["standard"])
    return Path(built)


def test_the_wheel_holds_what_ships_and_nothing_of_the_local_stack(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "fleetcast/instance_types.json" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"fleetcast"}
    assert [name for name in names if name.startswith("fleetcast/local/")] == []


def test_the_agent_runs_from_the_wheel_without_an_aws_sdk_or_the_cdk(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", RUN_AGENT_COMMAND, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    imported = ran.stdout
    assert not any(f"'{name}'" in imported for name in ("boto3", "botocore", "aws_cdk", "lambdas"))


@pytest.mark.parametrize(
    ("module", "command", "says"),
    [
        ("cli", "fleetcast", "the command line needs: pip install 'fleetcast[cli]'"),
        ("agent", "fleetcast-agent", "the agent needs: pip install 'fleetcast[agent]'"),
    ],
)
def test_a_command_without_its_packages_says_what_to_install(
    wheel: Path, tmp_path: Path, module: str, command: str, says: str
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        entry_points = archive.read(
            next(name for name in archive.namelist() if name.endswith("/entry_points.txt"))
        ).decode()

    ran = subprocess.run(
        [sys.executable, "-S", "-m", f"fleetcast.{module}", "--help"],  # -S: no packages but ours
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stderr == (f"{command}: the Python package click is not installed; {says}\n")
    assert f"{command} = fleetcast.{module}.__main__:main\n" in entry_points
