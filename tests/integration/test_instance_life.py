"""An instance's life as its owner sees it: an unmodified client, real NATS servers, real agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner

from fleetcast.agent.command import main as fleetcast_agent
from fleetcast.local.conditions import wait_until
from tests.ec2_endpoint import ec2_client, error_of
from tests.small_fleet import TYPE, SmallFleet, small_fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mypy_boto3_ec2 import EC2Client

    from tests.agent_process import AgentProcess

A, B = "us-east-1", "eu-west-1"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path, monkeypatch) as made:
        made.start_region(A)
        made.start_agent(A, "n1", slots=1)
        made.start_function(A)
        yield made


@pytest.fixture(scope="module")
def client() -> EC2Client:
    return ec2_client()  # takes a second to make


def launch(client: EC2Client) -> str:
    """Launch an instance, and wait as clients do until it runs."""
    answer = client.run_instances(ImageId="ami-00000001", InstanceType=TYPE, MinCount=1, MaxCount=1)
    name = answer["Instances"][0]["InstanceId"]
    await_state(client, "running", name)
    return name


def await_state(client: EC2Client, state: str, name: str) -> None:
    """Wait with botocore's own waiter; it fails at once for a state that leads nowhere."""
    waiter: Any = client.get_waiter(f"instance_{state}")  # type: ignore[call-overload] # not a literal
    waiter.config.delay = 0.05
    waiter.wait(InstanceIds=[name], WaiterConfig={"MaxAttempts": 300})


def stop(client: EC2Client, name: str) -> None:
    client.stop_instances(InstanceIds=[name])
    await_state(client, "stopped", name)


def states(change: Any) -> tuple[str, str]:  # noqa: ANN401 - botocore's answers
    return change["PreviousState"]["Name"], change["CurrentState"]["Name"]


def described(client: EC2Client, name: str) -> Any:  # noqa: ANN401 - botocore's answers
    answer = client.describe_instances(InstanceIds=[name])
    return answer["Reservations"][0]["Instances"][0]


def state(client: EC2Client, name: str) -> str:
    found: str = described(client, name)["State"]["Name"]
    return found


def refusal(call: Callable[..., object], **parameters: object) -> tuple[str, str, int]:
    with pytest.raises(ClientError) as error:
        call(**parameters)
    return error_of(error.value)


def order(agent: AgentProcess, command: str) -> None:
    """Do what a node's operator does on it."""
    ended = CliRunner().invoke(fleetcast_agent, [command, "--config", str(agent.config)])
    assert ended.exit_code == 0, ended.output


def console(client: EC2Client, name: str) -> str:
    return client.get_console_output(InstanceId=name, Latest=True)["Output"]


def test_an_instance_is_stopped_started_and_terminated(
    fleet: SmallFleet, client: EC2Client
) -> None:
    del fleet
    name = launch(client)
    (change,) = client.stop_instances(InstanceIds=[name])["StoppingInstances"]
    assert states(change) == ("running", "stopping")
    await_state(client, "stopped", name)
    stopped = described(client, name)
    assert stopped["StateReason"]["Message"] == (
        "Client.UserInitiatedShutdown: User initiated shutdown"
    )
    assert stopped["StateTransitionReason"].startswith("User initiated (")
    (change,) = client.start_instances(InstanceIds=[name])["StartingInstances"]
    assert states(change) == ("stopped", "pending")
    await_state(client, "running", name)
    assert described(client, name)["Placement"]["HostId"] == "n1"
    client.terminate_instances(InstanceIds=[name])
    await_state(client, "terminated", name)
    code, message, status = refusal(client.start_instances, InstanceIds=[name])
    assert (code, status) == ("IncorrectInstanceState", 400)
    assert message == f"The instance '{name}' is not in a state from which it can be started."


def test_a_stopped_instance_gives_its_room_back_and_needs_it_again(
    fleet: SmallFleet, client: EC2Client
) -> None:
    fleet.start_region(B)
    fleet.start_agent(B, "m1", slots=4)
    name = launch(client)
    stop(client, name)
    other = launch(client)
    code, message, status = refusal(client.start_instances, InstanceIds=[name])
    assert (code, status) == ("InsufficientInstanceCapacity", 500)
    assert f"{name} on node n1 in us-east-1a" in message
    assert state(client, name) == "stopped"
    client.terminate_instances(InstanceIds=[other])
    await_state(client, "terminated", other)
    client.start_instances(InstanceIds=[name])
    await_state(client, "running", name)
    assert described(client, name)["Placement"]["HostId"] == "n1"


def test_a_cordoned_node_starts_nothing_that_is_stopped(
    fleet: SmallFleet, client: EC2Client
) -> None:
    name = launch(client)
    stop(client, name)
    order(fleet.agents["n1"], "cordon")
    code, message, status = refusal(client.start_instances, InstanceIds=[name])
    assert (code, status) == ("InsufficientInstanceCapacity", 500)
    assert f"{name} on node n1 in us-east-1a" in message
    assert state(client, name) == "stopped"
    order(fleet.agents["n1"], "uncordon")
    client.start_instances(InstanceIds=[name])
    await_state(client, "running", name)


def test_a_stop_that_its_node_cannot_hear_is_done_when_it_is_back(
    fleet: SmallFleet, client: EC2Client
) -> None:
    name = launch(client)
    fleet.kill_agent("n1")
    (change,) = client.stop_instances(InstanceIds=[name])["StoppingInstances"]
    assert states(change) == ("running", "stopping")
    assert state(client, name) == "stopping"
    code, _, status = refusal(client.start_instances, InstanceIds=[name])
    assert (code, status) == ("ServiceUnavailable", 503), "it may have stopped by now"
    fleet.restart_agent("n1")
    await_state(client, "stopped", name)


def test_a_start_that_its_node_cannot_hear_may_be_repeated(
    fleet: SmallFleet, client: EC2Client
) -> None:
    name = launch(client)
    stop(client, name)
    fleet.kill_agent("n1")
    code, message, status = refusal(client.start_instances, InstanceIds=[name])
    assert (code, status) == ("ServiceUnavailable", 503)
    assert "n1 in us-east-1a" in message
    assert state(client, name) == "stopped"
    fleet.restart_agent("n1")
    assert state(client, name) == "stopped", "what has no answer has not been heard"
    client.start_instances(InstanceIds=[name])
    await_state(client, "running", name)


def test_a_stop_survives_kill_9_of_the_agent(fleet: SmallFleet, client: EC2Client) -> None:
    name = launch(client)
    client.stop_instances(InstanceIds=[name])
    fleet.kill_agent("n1")
    fleet.restart_agent("n1")
    await_state(client, "stopped", name)


def test_boots_and_reboots_are_on_the_console(fleet: SmallFleet, client: EC2Client) -> None:
    name = launch(client)
    assert f"{name} booted" in console(client, name)
    client.reboot_instances(InstanceIds=[name])
    assert wait_until(lambda: f"{name} rebooted" in console(client, name), deadline_s=15)
    assert state(client, name) == "running"
    stop(client, name)
    assert f"{name} stopped" in console(client, name)
    assert refusal(client.reboot_instances, InstanceIds=[name])[0] == "IncorrectInstanceState"
    client.terminate_instances(InstanceIds=[name])
    await_state(client, "terminated", name)
    assert console(client, name) == ""
    fleet.kill_agent("n1")
    assert refusal(client.get_console_output, InstanceId=name)[::2] == ("ServiceUnavailable", 503)


def test_the_types_are_those_that_agents_serve_with_and_without_room(
    fleet: SmallFleet, client: EC2Client
) -> None:
    del fleet

    def listed(*, has_room: bool) -> set[str]:
        word = "true" if has_room else "false"
        answer = client.describe_instance_types(
            Filters=[{"Name": "fleetcast:has-room", "Values": [word]}]
        )
        return {one["InstanceType"] for one in answer["InstanceTypes"]}

    # A node that is held up for a second is missing in an answer.
    assert wait_until(lambda: TYPE in listed(has_room=True), 15)
    launch(client)
    assert wait_until(lambda: TYPE in listed(has_room=False), 15)
    larger = refusal(client.describe_instance_types, InstanceTypes=["t3.2xlarge"])
    assert larger[0] == "InvalidInstanceType", "no node could ever hold it"
    (shown,) = client.describe_instance_types(InstanceTypes=[TYPE])["InstanceTypes"]
    assert shown["VCpuInfo"]["DefaultVCpus"] == 2
    assert shown["MemoryInfo"]["SizeInMiB"] == 4_096
    code, message, status = refusal(client.describe_instance_types, InstanceTypes=["m5.large"])
    assert (code, status) == ("InvalidInstanceType", 400)
    assert message == "The following supplied instance types do not exist: [m5.large]"
