"""The reconcile function whole: its entry, real NATS, real agents, the table in moto."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import nats
import pytest
from aws_lambda_powertools.utilities.typing import LambdaContext

from fleetcast import messages
from fleetcast.local.inventory import held_instances
from fleetcast.subjects import launch_subject
from lambdas.bus import Bus
from lambdas.reconcile import handler
from lambdas.reconcile.fleet import reconcile_fleet
from lambdas.settings import ReconcileSettings, Region, encode_settings
from tests.ec2_endpoint import ACCOUNT, ec2_client
from tests.small_fleet import TYPE, SmallFleet, small_fleet
from tests.tables import FLEET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mypy_boto3_ec2 import EC2Client

    from lambdas.records import InstanceRecord

US, EU = "us-east-1", "eu-west-1"


class Invocation(LambdaContext):
    """Lambda's context, as far as the handler reads it."""

    left_ms = 50_000

    def __init__(self) -> None:
        self._aws_request_id = "request"

    def get_remaining_time_in_millis(self) -> int:  # type: ignore[override] # static in theirs
        return self.left_ms


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallFleet]:
    with small_fleet(tmp_path, monkeypatch) as made:
        made.start_region(US)
        made.start_agent(US, "n1", slots=1)
        made.start_function(US)
        yield made


@pytest.fixture
def reconcile(
    fleet: SmallFleet, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Return the deployed function: it takes nothing but an event and a context."""
    settings = ReconcileSettings(
        fleet_table=FLEET,
        regions=(
            Region(name=US, nats_url=fleet.servers[US].url),
            Region(name=EU, nats_url="nats://127.0.0.1:1"),
        ),
        scored_instance_types=(TYPE,),
    )
    for variable, value in encode_settings(settings).items():
        monkeypatch.setenv(variable, value)
    handler.at_cold_start.cache_clear()
    yield lambda: handler.handle({}, Invocation())
    bus = handler.at_cold_start().services.bus
    assert isinstance(bus, Bus)
    handler.loop.run_until_complete(bus.close())
    handler.at_cold_start.cache_clear()


def launch(client: EC2Client) -> str:
    return client.run_instances(ImageId="ami-00000001", InstanceType=TYPE, MinCount=1, MaxCount=1)[
        "Instances"
    ][0]["InstanceId"]


def metrics(printed: str) -> dict[tuple[str | None, str | None, str], list[float]]:
    """Return what was published by region, instance type and name."""
    published: dict[tuple[str | None, str | None, str], list[float]] = {}
    for line in printed.splitlines():
        entry = json.loads(line)
        if "_aws" not in entry:
            continue
        (directive,) = entry["_aws"]["CloudWatchMetrics"]
        assert directive["Namespace"] == "fleetcast"
        assert entry["service"] == "reconcile"
        for metric in directive["Metrics"]:
            name = metric["Name"]
            published[entry.get("region"), entry.get("instance_type"), name] = entry[name]
    return published


def test_a_record_follows_its_node_through_its_life_and_its_silence(
    fleet: SmallFleet,
    reconcile: Callable[[], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = ec2_client()
    instance = launch(client)
    (record,) = fleet.records()
    assert (record.state, record.node) == ("pending", "n1")
    fleet.start_agent(US, "n2", slots=2)

    told = reconcile()
    (record,) = fleet.records()
    assert (record.instance_id, record.state) == (instance, "running")
    assert told["regions"][US]["nodes"] == 2
    capsys.readouterr()

    fleet.kill_agent("n1")
    told = reconcile()
    (record,) = fleet.records()
    assert (record.state, record.unreachable_since_s is not None) == ("running", True)
    published = metrics(capsys.readouterr().out)
    assert published[None, None, "UnknownInstances"] == [1]
    assert published[US, None, "SilentNodes"] == [1]
    assert published[None, None, "RunsCompleted"] == [1]
    assert published[US, TYPE, "Room"] == [2]
    assert published[EU, TYPE, "Room"] == [0]
    reason = client.describe_instances()["Reservations"][0]["Instances"][0]["StateReason"]
    assert reason["Code"] == "Server.NodeUnreachable"
    assert "n1" in reason["Message"]

    fleet.restart_agent("n1")
    reconcile()
    (record,) = fleet.records()
    assert (record.state, record.unreachable_since_s) == ("running", None)


def test_a_second_holder_of_an_instance_gives_it_up(
    fleet: SmallFleet, reconcile: Callable[[], dict[str, Any]]
) -> None:
    instance = launch(ec2_client())  # and n1 is full
    fleet.start_agent(US, "n2", slots=1)
    (record,) = fleet.records()
    fleet.outside.run(launch_again(fleet.servers[US].url, record))
    held = held_instances(fleet.servers[US].url, US, nodes=2)
    assert fleet.outside.run(held) == [instance, instance]
    told = reconcile()
    assert told["regions"][US]["orphans_destroyed_n"] == 1
    reconcile()
    nodes = handler.at_cold_start().services.fleet.nodes(US)
    assert {node.node: node.instances_n for node in nodes} == {"n1": 1, "n2": 0}
    (record,) = fleet.records()
    assert (record.node, record.state) == ("n1", "running")


async def launch_again(nats_url: str, record: InstanceRecord) -> None:
    """Ask for an instance once more, as a function does whose first request got no answer."""
    now_ms = time.time_ns() // 1_000_000
    headers = messages.LaunchHeaders(
        launch_id=record.reservation_id, attempt=2, expires_at_ms=now_ms + 5_000
    )
    again = messages.InstanceToLaunch(instance_id=record.instance_id, launch_index=0)
    request = messages.LaunchRequest(
        account_id=record.account_id,
        instances=(again,),
        instance_type=TYPE,
        image_id=record.image_id,
    )
    connection = await nats.connect(nats_url)
    answer = await connection.request(
        launch_subject(US, TYPE), messages.encode(request), timeout=5, headers=headers.encode()
    )
    await connection.close()
    reply = messages.decode_launch_reply(answer.data)
    assert isinstance(reply, messages.Accepted)
    assert reply.node == "n2"


def test_an_instance_without_a_record_is_destroyed_by_its_agent(
    fleet: SmallFleet, reconcile: Callable[[], dict[str, Any]]
) -> None:
    launch(ec2_client())
    for item in fleet.items():
        if item["pk"]["S"] == f"ACCOUNT#{ACCOUNT}":
            fleet.dynamodb.delete_item(
                TableName=FLEET, Key={key: item[key] for key in ("pk", "sk")}
            )
    reconcile()
    services = handler.at_cold_start().services
    assert [node.instances_n for node in services.fleet.nodes(US)] == [1]
    a_minute_on = replace(services, now_s=lambda: time.time() + 60)
    summary = handler.loop.run_until_complete(reconcile_fleet(a_minute_on, [US]))
    assert summary.regions[0].orphans_destroyed_n == 1
    later = replace(services, now_s=lambda: time.time() + 120)
    summary = handler.loop.run_until_complete(reconcile_fleet(later, [US]))
    assert summary.regions[0].orphans_destroyed_n == 0
    assert [node.instances_n for node in services.fleet.nodes(US)] == [0]


def test_what_could_not_be_done_is_raised_and_counts_as_no_run(
    fleet: SmallFleet,
    reconcile: Callable[[], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet.dynamodb.delete_table(TableName=FLEET)
    with pytest.raises(ExceptionGroup) as failed:
        reconcile()
    assert {type(error).__name__ for error in failed.value.exceptions} == {
        "ResourceNotFoundException"
    }
    assert metrics(capsys.readouterr().out)[None, None, "RunsCompleted"] == [0]


def test_a_run_ends_before_lambda_ends_it(
    reconcile: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reconcile()
    monkeypatch.setattr(Invocation, "left_ms", 2_001)
    with pytest.raises(TimeoutError):
        reconcile()
