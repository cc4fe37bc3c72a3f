"""Launches that meet each other, a termination, or a table that fails in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from fleetcast import messages
from fleetcast.errors import (
    InsufficientInstanceCapacity,
    InternalError,
    RefusedByNode,
    ServiceUnavailable,
)
from fleetcast.instance_types import ec2_catalogue
from fleetcast.launch_story import MAX_WHY_CHARACTERS
from fleetcast.subjects import NodeAction, action_of
from lambdas.attribute_values import encode_item
from lambdas.fleet_table import FleetTable
from lambdas.region_scores import RegionScoresTable
from lambdas.run_instances.instance_actions import describe_instances, terminate_instances
from lambdas.run_instances.launching import run_instances
from lambdas.run_instances.refusals import REMEMBERED_S, RefusalMemory
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
OTHER = "us-west-2"
PARAMETERS = {
    "ImageId": "ami-00000001",
    "InstanceType": "t3.medium",
    "MinCount": 1,
    "MaxCount": 1,
    "ClientToken": "once",
}


class FunctionDied(BaseException):
    """Passes through everything that a function does about errors, as its death would."""


async def nothing() -> None:
    pass


@dataclass
class Function:
    """The function over a table in moto and scripted regions.

    answers: of the default region. other: of a second one, if there is to be one. meanwhile: what
    happens between a request's leaving and its answer. dies_before: the question that it doesn't
    come to ask, once.
    """

    dynamodb: DynamoDBClient
    answers: list[Answer]
    other: list[Answer] | None = None
    meanwhile: Callable[[], Awaitable[object]] = nothing
    dies_before: NodeAction | None = None
    now_s: float = 1_700_000_000.0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        scripts = {REGION: self.answers}
        if self.other is not None:
            scripts[OTHER] = self.other
        self.region = Fleet(scripts)
        self.table = FleetTable(self.dynamodb, FLEET)
        self.services = Services(
            settings=RunInstancesSettings(
                fleet_table=FLEET,
                region_scores_table=REGION_SCORES,
                regions=tuple(Region(name=one, nats_url="nats://127.0.0.1:1") for one in scripts),
                default_region=REGION,
            ),
            instance_types=ec2_catalogue(),
            fleet=self.table,
            scores=RegionScoresTable(self.dynamodb, REGION_SCORES),
            bus=self,
            known_nodes=self.region.known_nodes,
            refusals=RefusalMemory(lambda: self.now_s),
            now_s=lambda: self.now_s,
            clock_s=lambda: self.now_s,
            sleep=self.sleep,
            random_hex=lambda digits: f"{next(self.numbers):0{digits}x}",
        )

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    async def ask(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> bytes:
        if action_of(subject) == self.dies_before:
            self.dies_before = None
            raise FunctionDied
        happens, self.meanwhile = self.meanwhile, nothing
        await happens()
        return await self.region.ask(region, subject, payload, timeout_s=timeout_s, headers=headers)

    async def gather(
        self,
        region: str,
        subject: str,
        payload: bytes,
        *,
        timeout_s: float,
        expected: int | None = None,
    ) -> list[bytes]:
        return await self.region.gather(
            region, subject, payload, timeout_s=timeout_s, expected=expected
        )

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
    function = Function(dynamodb, [Accept("n1", 9)], meanwhile=second_waits.wait)

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
    function = Function(dynamodb, ["no_responders", Accept("n1", 1)], meanwhile=second_waits.wait)

    async def second() -> Result:
        second_waits.set()
        return await function.launch()

    one, other = await asyncio.gather(function.launch(), second(), return_exceptions=True)
    assert isinstance(one, InsufficientInstanceCapacity)
    assert isinstance(other, dict)
    assert {record.node for record in function.records()} == {"n1"}


async def test_who_waits_for_an_earlier_launch_writes_nothing_meanwhile(
    dynamodb: DynamoDBClient,
) -> None:
    second_waits, writes = asyncio.Event(), itertools.count()
    function = Function(dynamodb, [Accept("n1", 9)])

    async def first_is_slow() -> None:
        await second_waits.wait()
        for _ in range(50):
            await asyncio.sleep(0)

    def count(**_: object) -> None:
        next(writes)

    async def second() -> Result:
        events: Any = dynamodb.meta.events
        events.register("before-call.dynamodb.TransactWriteItems", count)
        second_waits.set()
        return await function.launch()

    function.meanwhile = first_is_slow
    await asyncio.gather(function.launch(), second())
    assert next(writes) == 2, "the second's one try to begin, and the end of the first"


async def test_a_launch_that_cannot_be_written_for_the_crowd_is_not_laid_to_an_earlier_one(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 9)])
    reasons = {"CancellationReasons": [{"Code": "ThrottlingError"}]}
    with Stubber(dynamodb) as stubber:
        for _ in range(10):
            stubber.add_client_error(
                "transact_write_items", "TransactionCanceledException", modeled_fields=reasons
            )
        with pytest.raises(ServiceUnavailable, match="could not be written down"):
            await function.launch(ClientToken=None, seconds=2.05)


# --- an outcome that is not known ----------------------------------------------------------


def in_doubt(dynamodb: DynamoDBClient, answers: list[Answer]) -> Function:
    """Return a function whose one region hears launches and nothing else."""
    function = Function(dynamodb, answers)
    function.region.mute = frozenset({REGION})
    return function


async def test_a_launch_whose_outcome_cannot_be_known_is_kept_and_not_made_again(
    dynamodb: DynamoDBClient,
) -> None:
    function = in_doubt(dynamodb, [Lost("n1", 1), Accept("n2", 1)])
    for _ in range(2):
        with pytest.raises(InternalError, match="same ClientToken"):
            await function.launch()
    assert len(function.region.asked) == 1
    (record,) = function.records()
    assert (record.state, record.node) == ("pending", None)


async def test_the_same_token_finds_what_an_unknown_launch_has_become(
    dynamodb: DynamoDBClient,
) -> None:
    function = in_doubt(dynamodb, [Lost("n1", 1)])
    with pytest.raises(InternalError):
        await function.launch()
    (before,) = function.records()
    function.region.mute = frozenset()
    answer: Any = await function.launch()
    (record,) = function.records()
    assert (record.instance_id, record.node) == (before.instance_id, "n1")
    assert answer["ReservationId"] == before.reservation_id
    assert [one["InstanceId"] for one in answer["Instances"]] == [before.instance_id]
    assert len(function.region.asked) == 1


async def test_the_same_token_does_not_do_a_job_again_that_is_done(
    dynamodb: DynamoDBClient,
) -> None:
    function = in_doubt(dynamodb, [Lost("n1", 1), Accept("n1", 1)])
    with pytest.raises(InternalError):
        await function.launch()
    function.region.mute = frozenset()
    function.region.ended = True
    await function.launch()
    assert [record.node for record in function.records()] == ["n1"]
    assert function.region.started_n == 1


async def test_the_same_token_launches_anew_when_an_unknown_launch_has_become_nothing(
    dynamodb: DynamoDBClient,
) -> None:
    function = in_doubt(dynamodb, ["no_answer", Accept("n1", 1)])
    with pytest.raises(InternalError):
        await function.launch()
    function.region.mute = frozenset()
    function.region.known_nodes = lambda region: frozenset({"n1"} if region else ())  # type: ignore[method-assign]
    await function.launch()
    assert [record.node for record in function.records()] == ["n1"]
    assert function.region.runs().keys() == {"n1"}


async def test_a_launch_whose_function_died_is_undecided_and_then_what_its_nodes_hold(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1), Accept("n2", 1)])
    function.fail_on("TransactWriteItems", 2)  # where its end would have been written
    with pytest.raises(EndpointConnectionError):
        await function.launch()
    with pytest.raises(ServiceUnavailable, match="not decided yet"):
        await function.launch(seconds=2.05)
    function.now_s += 30
    answer: Any = await function.launch()
    assert len(function.region.asked) == 1
    (record,) = function.records()
    assert answer["Instances"][0]["InstanceId"] == record.instance_id
    assert (record.node, record.region) == ("n1", REGION)


async def test_a_launch_that_died_below_min_count_is_given_up_and_its_token_is_free(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1), Accept("n2", 1), Accept("n3", 2)])
    function.region.lapsing = frozenset({"n2"})
    function.dies_before = NodeAction.RELEASE
    with pytest.raises(FunctionDied):
        await function.launch(MinCount=2, MaxCount=2)
    assert function.region.runs() == {"n1": {function.records()[0].instance_id}}
    function.now_s += 30
    answer: Any = await function.launch(MinCount=2, MaxCount=2)
    assert len(answer["Instances"]) == 2
    assert function.region.runs().keys() == {"n3"}
    assert {record.node for record in function.records()} == {"n3"}


async def test_what_has_lost_its_record_is_no_part_of_a_resolved_launch(
    dynamodb: DynamoDBClient,
) -> None:
    """Who decided it before died after having dropped some records, and before it was decided."""
    function = in_doubt(dynamodb, [Lost("n1", 2)])
    with pytest.raises(InternalError):
        await function.launch(MaxCount=2)
    dropped, kept = function.records()
    key = {"pk": f"ACCOUNT#{ACCOUNT}", "sk": f"INSTANCE#{dropped.instance_id}"}
    dynamodb.delete_item(TableName=FLEET, Key=encode_item(key))
    function.region.mute = frozenset()
    answer: Any = await function.launch(MaxCount=2)
    assert [one["InstanceId"] for one in answer["Instances"]] == [kept.instance_id]
    assert [record.instance_id for record in function.records()] == [kept.instance_id]
    assert function.region.runs() == {"n1": {kept.instance_id}}


async def test_too_few_with_a_record_are_no_launch(dynamodb: DynamoDBClient) -> None:
    function = in_doubt(dynamodb, [Lost("n1", 1), Accept("n2", 1)])
    with pytest.raises(InternalError):
        await function.launch()
    (dropped,) = function.records()
    key = {"pk": f"ACCOUNT#{ACCOUNT}", "sk": f"INSTANCE#{dropped.instance_id}"}
    dynamodb.delete_item(TableName=FLEET, Key=encode_item(key))
    function.region.mute = frozenset()
    await function.launch()
    assert [record.node for record in function.records()] == ["n2"]
    assert function.region.runs().keys() == {"n2"}


async def test_a_walk_that_hangs_is_cut_and_leaves_the_outcome_unknown(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, [Accept("n1", 1)], meanwhile=asyncio.Event().wait)
    with pytest.raises(InternalError, match="the launch happened: us-east-1: time ran out"):
        async with asyncio.timeout(20):
            await function.launch(seconds=7.2)
    (record,) = function.records()
    reservation = function.table.launches.read(ACCOUNT, record.reservation_id)
    assert reservation
    assert reservation.state == "unknown"
    assert reservation.story
    assert [one.end for one in reservation.story.verdicts] == ["in_doubt"]
    assert function.services.refusals.asked_in_vain([REGION], "t3.medium", None)


async def test_a_function_that_wakes_after_its_launch_was_resolved_changes_nothing(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, ["no_responders"])

    async def long_sleep() -> None:
        function.now_s += 60
        (record,) = function.records()
        reservation = function.table.launches.read(ACCOUNT, record.reservation_id)
        assert reservation
        placed = msgspec.structs.replace(reservation, state="placed", region=REGION)
        at_n1 = msgspec.structs.replace(record, region=REGION, node="n1")
        function.table.launches.place(placed, [at_n1])

    function.meanwhile = long_sleep
    with pytest.raises((InsufficientInstanceCapacity, ServiceUnavailable)):
        await function.launch()
    (record,) = function.records()
    assert record.node == "n1"
    reservation = function.table.launches.read(ACCOUNT, record.reservation_id)
    assert reservation
    assert reservation.state == "placed"


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
    assert logs.fields("refused launch not written down")


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
    function = in_doubt(dynamodb, [Lost("n1", 1)])
    with pytest.raises(InternalError):
        await function.launch()
    (record,) = function.records()
    moves = iter([True])

    def is_dropped(**_: object) -> None:
        if next(moves, False):
            reservation = function.table.launches.read(ACCOUNT, record.reservation_id)
            assert reservation
            function.table.launches.refuse(msgspec.structs.replace(reservation, state="refused"))

    events: Any = dynamodb.meta.events
    events.register("before-call.dynamodb.UpdateItem", is_dropped)
    answer: Any = await function.terminate(record.instance_id)
    assert answer["TerminatingInstances"][0]["CurrentState"]["Name"] == "terminated"
    assert function.records() == []


# --- the memory of refusals ----------------------------------------------------------------


async def test_a_region_asked_in_vain_is_asked_last_for_some_seconds_and_never_skipped(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(
        dynamodb, ["no_responders"] * 2, other=["no_responders", *[Accept("m1", 1)] * 3]
    )

    async def asked_for_one() -> list[str]:
        before = len(function.region.asked)
        with contextlib.suppress(InsufficientInstanceCapacity):
            await function.launch(ClientToken=f"token-{before}")
        return [region for region, _ in function.region.asked[before:]]

    assert await asked_for_one() == [REGION, OTHER]
    assert await asked_for_one() == [REGION, OTHER], "both were asked in vain: the order stays"
    function.now_s += 1
    assert await asked_for_one() == [OTHER], "it has taken one, the first one has not"
    function.now_s += REMEMBERED_S
    assert await asked_for_one() == [REGION, OTHER]


async def test_a_region_that_there_was_no_time_to_ask_was_not_asked_in_vain(
    dynamodb: DynamoDBClient,
) -> None:
    function = Function(dynamodb, ["unreachable", Accept("n1", 1)], other=[Accept("m1", 1)])

    async def takes_long() -> None:
        function.now_s += 17

    function.meanwhile = takes_long
    with pytest.raises(ServiceUnavailable):
        await function.launch()
    await function.launch()
    assert [region for region, _ in function.region.asked] == [REGION, OTHER]


# --- what is kept of it --------------------------------------------------------------------


async def test_however_much_nodes_have_to_say_their_launch_can_be_written_down(
    dynamodb: DynamoDBClient,
) -> None:
    fault = messages.Rejected(node="n1", reason="node_fault", message="disk! " * 50_000)
    answers: list[Answer] = [*[messages.encode(fault).decode()] * 2, Accept("n1", 1)]
    function = Function(dynamodb, answers, other=[])
    await function.launch()
    (record,) = function.records()
    reservation = function.table.launches.read(ACCOUNT, record.reservation_id)
    assert reservation
    assert reservation.story
    assert [ask.outcome for ask in reservation.story.asks] == ["node_fault"] * 2 + ["accepted"]
    assert all(len(ask.detail) <= MAX_WHY_CHARACTERS for ask in reservation.story.asks)


async def test_a_refusal_in_many_words_can_be_written_down(dynamodb: DynamoDBClient) -> None:
    fault = messages.Rejected(
        node="n1", reason="client_fault", code="InvalidAMIID.NotFound", message="gone! " * 100_000
    )
    function = Function(dynamodb, [messages.encode(fault).decode()])
    with captured_logs("lambdas") as logs, pytest.raises(RefusedByNode):
        await function.launch()
    assert not logs.fields("refused launch not written down")
