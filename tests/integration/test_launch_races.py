"""Launches that meet each other, a termination, or a table that fails in the middle."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from botocore.exceptions import EndpointConnectionError

from fleetcast.errors import (
    InsufficientInstanceCapacity,
    InternalError,
    ServiceUnavailable,
)
from fleetcast.instance_types import ec2_catalogue
from lambdas.fleet_table import FleetTable
from lambdas.region_scores import RegionScoresTable
from lambdas.run_instances.instance_actions import describe_instances, terminate_instances
from lambdas.run_instances.launching import run_instances
from lambdas.run_instances.services import Call, Services
from lambdas.settings import Region, RunInstancesSettings
from tests.captured_logs import captured_logs
from tests.scripted_regions import Accept, Fleet, Lost
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

    from lambdas.records import InstanceRecord
    from lambdas.run_instances.descriptions import Result
    from tests.scripted_regions import Answer

ACCOUNT = "123456789012"
REGION = "us-east-1"
PARAMETERS = {
    "ImageId": "ami-00000001",
    "InstanceType": "t3.medium",
    "MinCount": 1,
    "MaxCount": 1,
    "ClientToken": "once",
}


async def nothing() -> None:
    pass


@dataclass
class Function:
    """The function over a table in moto and one scripted region.

    meanwhile: what happens between a request's leaving and its answer.
    """

    dynamodb: DynamoDBClient
    answers: list[Answer]
    meanwhile: Callable[[], Awaitable[object]] = nothing
    now_s: float = 1_700_000_000.0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.region = Fleet({REGION: self.answers})
        self.table = FleetTable(self.dynamodb, FLEET)
        self.services = Services(
            settings=RunInstancesSettings(
                fleet_table=FLEET,
                region_scores_table=REGION_SCORES,
                regions=(Region(name=REGION, nats_url="nats://127.0.0.1:1"),),
                default_region=REGION,
            ),
            instance_types=ec2_catalogue(),
            fleet=self.table,
            scores=RegionScoresTable(self.dynamodb, REGION_SCORES),
            ask=self._ask,
            now_s=lambda: self.now_s,
            clock_s=lambda: self.now_s,
            random_hex=lambda digits: f"{next(self.numbers):0{digits}x}",
        )

    async def _ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        happens, self.meanwhile = self.meanwhile, nothing
        await happens()
        return await self.region.ask(region, subject, payload, timeout_s=timeout_s, headers=headers)

    def call(self, seconds: float = 27) -> Call:
        return Call(account_id=ACCOUNT, request_id="r", deadline_s=self.now_s + seconds)

    async def launch(self, *, seconds: float = 27, **changes: object) -> Result:
        return await run_instances(self.services, self.call(seconds), {**PARAMETERS, **changes})

    async def describe(self) -> Result:
        return await describe_instances(self.services, self.call(), {})

    async def terminate(self, *names: str) -> Result:
        return await terminate_instances(self.services, self.call(), {"InstanceIds": list(names)})

    def records(self) -> list[InstanceRecord]:
        return self.table.instances(ACCOUNT)

    def fail_on(self, operation: str, *numbers: int) -> None:
        """Let these calls of an operation, counted from now, find no DynamoDB."""
        calls = itertools.count(1)

        def cut_off(**_: object) -> None:
            if next(calls) in numbers:
                raise EndpointConnectionError(endpoint_url="http://dynamodb")

        events: Any = self.dynamodb.meta.events
        events.register(f"before-call.dynamodb.{operation}", cut_off)


@pytest.fixture
def dynamodb() -> Iterator[DynamoDBClient]:
    with tables(FLEET, REGION_SCORES) as client:
        yield client


# --- the same token twice ------------------------------------------------------------------


async def test_the_same_token_at_the_same_moment_gives_one_launch_to_both(
    dynamodb: DynamoDBClient,
) -> None:
    second_waits = asyncio.Event()
    function = Function(dynamodb, [Accept("n1", 9)], second_waits.wait)

    async def second() -> Result:
        second_waits.set()
        return await function.launch()

    one, other = await asyncio.gather(function.launch(), second())
    assert one["ReservationId"] == other["ReservationId"]
    assert one["Instances"] == other["Instances"]
    assert len(function.region.asked) == 1
    assert len(function.records()) == 1


async def test_a_token_whose_first_launch_is_refused_goes_to_the_second(
    dynamodb: DynamoDBClient,
) -> None:
    second_waits = asyncio.Event()
    function = Function(dynamodb, ["no_responders", Accept("n1", 1)], second_waits.wait)

    async def second() -> Result:
        second_waits.set()
        return await function.launch()

    one, other = await asyncio.gather(function.launch(), second(), return_exceptions=True)
    assert isinstance(one, InsufficientInstanceCapacity)
    assert isinstance(other, dict)
    assert {record.node for record in function.records()} == {"n1"}


# --- an outcome that is not known ----------------------------------------------------------


async def test_a_launch_without_an_answer_is_kept_and_not_made_again(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Lost("n1", 1), Accept("n2", 1)])
    for _ in range(2):
        with pytest.raises(InternalError, match="same ClientToken"):
            await function.launch()
    assert len(function.region.asked) == 1
    (record,) = function.records()
    assert (record.state, record.node) == ("pending", None)


async def test_a_launch_whose_function_died_is_undecided_and_then_unknown_but_never_made_again(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1), Accept("n2", 1)])
    function.fail_on("TransactWriteItems", 2)  # where its end would have been written
    with pytest.raises(EndpointConnectionError):
        await function.launch()
    with pytest.raises(ServiceUnavailable, match="not decided yet"):
        await function.launch(seconds=2.05)
    function.now_s += 30
    with pytest.raises(InternalError, match="not known"):
        await function.launch()
    assert len(function.region.asked) == 1


# --- a table that fails --------------------------------------------------------------------


async def test_a_launch_that_cannot_be_written_down_is_not_asked_for(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1)])
    function.fail_on("TransactWriteItems", 1)
    with pytest.raises(EndpointConnectionError):
        await function.launch()
    assert not function.region.asked


async def test_a_refusal_stays_one_when_it_cannot_be_written_down(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [])
    function.fail_on("TransactWriteItems", 2)
    with captured_logs("lambdas") as logs, pytest.raises(InsufficientInstanceCapacity):
        await function.launch()
    assert logs.fields("refused launch not dropped")


async def test_a_launch_whose_end_is_not_written_is_not_logged_as_launched(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1)])
    function.fail_on("TransactWriteItems", 2)
    with captured_logs("lambdas") as logs, pytest.raises(EndpointConnectionError):
        await function.launch()
    assert [line["outcome"] for line in logs.fields("launch decided")] == ["unfinished"]


# --- a termination in between --------------------------------------------------------------


async def test_an_instance_terminated_while_it_is_placed_is_terminated_on_its_node(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1)])

    async def terminate_it() -> None:
        await function.terminate(*(record.instance_id for record in function.records()))

    function.meanwhile = terminate_it
    await function.launch()
    assert [(record.state, record.node) for record in function.records()] == [
        ("shutting-down", "n1")
    ]
    assert function.region.holds(), "the node has not heard of it"
    await function.describe()
    assert not function.region.holds()


async def test_a_termination_that_meets_a_change_of_state_is_recorded_all_the_same(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1)])
    await function.launch()
    (pending,) = function.records()
    moves = iter([True])

    def becomes_running(**_: object) -> None:
        if next(moves, False):
            running = msgspec.structs.replace(pending, state="running")
            assert function.table.change_state(pending, running)

    events: Any = dynamodb.meta.events
    events.register("before-call.dynamodb.UpdateItem", becomes_running)
    await function.terminate(pending.instance_id)
    assert [record.state for record in function.records()] == ["shutting-down"]
    assert not function.region.holds()


async def test_terminating_an_instance_whose_launch_is_refused_at_that_moment_succeeds(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Lost("n1", 1)])
    with pytest.raises(InternalError):
        await function.launch()
    (record,) = function.records()
    moves = iter([True])

    def is_dropped(**_: object) -> None:
        if next(moves, False):
            reservation = function.table.reservation(ACCOUNT, record.reservation_id)
            assert reservation
            function.table.drop_launch(reservation, None)

    events: Any = dynamodb.meta.events
    events.register("before-call.dynamodb.UpdateItem", is_dropped)
    answer: Any = await function.terminate(record.instance_id)
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "terminated"
    assert function.records() == []
