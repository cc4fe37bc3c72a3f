"""What the functions' roles may do to the tables is what the functions do to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lambdas.fleet_table import FleetTable
from lambdas.launch_table import Reservation, Token
from lambdas.records import InstanceRecord
from lambdas.region_scores import RegionScoresTable, ScoreRow
from tests.read_api import read_api
from tests.reconciled_world import a_world, make_a_mess
from tests.region_sweeps import sweep_of
from tests.scripted_nodes import instance_id
from tests.tables import FLEET, REGION_SCORES, tables

if TYPE_CHECKING:
    import pytest
    from mypy_boto3_dynamodb import DynamoDBClient

NOW_S = 1_700_000_000.0
RECORD = InstanceRecord(
    account_id="123456789012",
    reservation_id="r-0123456789abcdef0",
    instance_id="i-0123456789abcdef0",
    instance_type="t3.medium",
    image_id="ami-00000001",
    architecture="x86_64",
    launch_index=0,
    launched_at_s=NOW_S,
)
RESERVATION = Reservation(
    account_id=RECORD.account_id,
    reservation_id=RECORD.reservation_id,
    instance_type=RECORD.instance_type,
    launched_at_s=NOW_S,
    instance_ids=(RECORD.instance_id,),
    state="placing",
    undecided_until_s=NOW_S,
)
TOKEN = Token(
    client_token="token",  # noqa: S106 - a ClientToken is no secret
    fingerprint="f" * 64,
    reservation_id=RECORD.reservation_id,
)
ROW = ScoreRow(
    instance_type="t3.medium",
    region="us-east-1",
    score=0.5,
    missing_scored_signals=2,
    telemetry_status="unavailable",
    signals={},
    reasons=(),
    computed_at_s=NOW_S,
    sweep_id="sweep",
    expires_at_s=int(NOW_S),
)


def granted(template: dict[str, Any], role: str, table: str) -> set[str]:
    """Return the DynamoDB actions that a role may do to a table."""
    (policy,) = (
        resource["Properties"]["PolicyDocument"]
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::IAM::Policy" and role in name
    )
    actions: set[str] = set()
    for statement in policy["Statement"]:
        if f"Tables{table}" in str(statement["Resource"]):
            allowed = statement["Action"]  # a text, when there is only one
            actions.update([allowed] if isinstance(allowed, str) else allowed)
    return {action.removeprefix("dynamodb:") for action in actions}


def noted_actions(client: DynamoDBClient) -> set[str]:
    """Return a set that fills with the IAM actions of the client's calls."""
    actions: set[str] = set()

    def note(params: dict[str, Any], model: Any, **_: object) -> None:  # noqa: ANN401 - botocore's
        if model.name == "TransactWriteItems":
            # IAM knows only what a transaction is made of.
            actions.update(f"{kind}Item" for write in params["TransactItems"] for kind in write)
        else:
            actions.add(model.name)

    events: Any = client.meta.events
    events.register("provide-client-params.dynamodb", note)
    return actions


def test_run_instances_may_do_to_the_fleet_table_exactly_what_it_does(
    template: dict[str, Any],
) -> None:
    with tables(FLEET) as client:
        done = noted_actions(client)
        fleet = FleetTable(client, FLEET)
        fleet.launches.begin(RESERVATION, [RECORD], TOKEN, now_s=NOW_S)
        placed = msgspec.structs.replace(RECORD, region="us-east-1", node="n1")
        fleet.launches.leave_unknown(msgspec.structs.replace(RESERVATION, state="unknown"))
        # So many that it takes two transactions.
        ids = tuple(f"i-{number:017x}" for number in range(60))
        large = msgspec.structs.replace(RESERVATION, state="placed", instance_ids=ids)
        fleet.launches.place(large, [placed])
        fleet.launches.read(RECORD.account_id, RECORD.reservation_id)
        fleet.instances(RECORD.account_id)
        fleet.instances_by_id(RECORD.account_id, [RECORD.instance_id])
        fleet.change_state(placed, msgspec.structs.replace(placed, state="running"))
        fleet.seen_nodes("us-east-1", now_s=NOW_S)
    assert granted(template, "RunInstancesRole", "Fleet") == done


async def test_reconcile_may_do_to_the_fleet_table_exactly_what_it_does(
    template: dict[str, Any],
) -> None:
    with tables(FLEET) as client:
        world = a_world(client)
        make_a_mess(world)
        # So many that it takes two transactions to refuse it.
        world.begin(9, instance_ids=tuple(instance_id(number) for number in range(100, 160)))
        done = noted_actions(client)
        for _ in range(2):
            assert not (await world.run()).errors
    assert granted(template, "ReconcileRole", "Fleet") == done


def test_read_api_may_do_to_each_table_exactly_what_it_does(
    template: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with read_api(monkeypatch) as api:
        api.fleet.launches.begin(RESERVATION, [RECORD], None, now_s=NOW_S)
        read = noted_actions(api.dynamodb)
        assert api.get(f"/v1/launches/{RESERVATION.reservation_id}")[0] == 200
        assert granted(template, "ReadApiRole", "Fleet") == read
        read.clear()
        assert api.get("/v1/scores")[0] == 200
        assert granted(template, "ReadApiRole", "RegionScores") == read


def test_run_instances_and_score_regions_may_do_to_scores_exactly_what_they_do(
    template: dict[str, Any],
) -> None:
    with tables(REGION_SCORES) as client:
        scores = RegionScoresTable(client, REGION_SCORES)
        written = noted_actions(client)
        scores.read_memory(ROW.region)
        scores.write(sweep_of(ROW))
        assert granted(template, "ScoreRegionsRole", "RegionScores") == written
    with tables(REGION_SCORES) as client:
        scores = RegionScoresTable(client, REGION_SCORES)
        read = noted_actions(client)
        scores.read_scores("t3.medium")
        assert granted(template, "RunInstancesRole", "RegionScores") == read
