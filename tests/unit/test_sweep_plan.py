"""Who is asked for what in a sweep, and what is known without asking."""

from __future__ import annotations

from unittest.mock import call, create_autospec

import msgspec
import pytest

from fleetcast.scoring import Reading
from lambdas.score_regions.clients import AwsClients
from lambdas.score_regions.collection import SignalKey
from lambdas.score_regions.memory import Answer, JobQueue, RegionMemory
from lambdas.score_regions.plan import Plan, make_clients_ahead, plan_sweep
from lambdas.score_regions.signals.job_queue import JobQueues
from lambdas.settings import Region, ScoreRegionsSettings

NOW_S = 1_777_000_000.0
HOUR_S = 3_600.0
SWEPT = RegionMemory(swept_at_s=NOW_S - 300)
CLOUD = Region(
    name="us-east-1", nats_url="tls://a:4222", job_stack_name="jobs", cluster_name="gpus"
)
OTHER = Region(name="eu-west-1", nats_url="tls://b:4222")
LAB = Region(name="lab-1", nats_url="tls://c:4222", telemetry="fleet")


def settings(*regions: Region, types: tuple[str, ...] = ("t3.medium",)) -> ScoreRegionsSettings:
    return ScoreRegionsSettings(
        region_scores_table="RegionScores", regions=regions, scored_instance_types=types
    )


def plan(
    clients: AwsClients, of: ScoreRegionsSettings, memories: dict[str, RegionMemory] | None = None
) -> Plan:
    memories = {region.name: SWEPT for region in of.regions} | (memories or {})
    queues = JobQueues({name: memory.job_queue for name, memory in memories.items()}, now_s=NOW_S)
    return plan_sweep(of, memories, queues, clients, lambda name: name, now_s=NOW_S)


def names(plan: Plan) -> set[str]:
    return {probe.name for probe in plan.probes}


def answered(age_s: float, *signals: str) -> RegionMemory:
    """A memory in which these have been answered so long ago."""
    return RegionMemory(
        swept_at_s=NOW_S - 300, answers={name: Answer(NOW_S - age_s, 0.5, "ok") for name in signals}
    )


ALL_OF_T3 = (
    "spot_placement t3.medium",
    "on_demand_price_usd_per_hour t3.medium",
    "spot_price_trend t3.medium",
)


def test_everything_is_asked_for_once_when_nothing_is_remembered(clients: AwsClients) -> None:
    asked = plan(clients, settings(CLOUD, OTHER, types=("t3.medium", "c5.large", "p5.48xlarge")))

    assert sorted(name.split(" of ")[0] for name in names(asked)) == [
        "capacity blocks",
        "capacity blocks",
        "job queue",
        "metrics",
        "on-demand prices",
        "on-demand prices",
        "on-demand prices",
        "spot placement",
        "spot placement",
        "spot price trends",
        "spot price trends",
        "spot prices",
        "spot prices",
    ]


@pytest.mark.parametrize("of", [settings(CLOUD, OTHER, LAB, types=("t3.medium", "p5.48xlarge"))])
def test_every_signal_is_either_asked_for_or_known(
    clients: AwsClients, of: ScoreRegionsSettings
) -> None:
    made = plan(clients, of)
    asked = [key for probe in made.probes for key in probe.expects]
    covered = set(asked) | set(made.known)

    assert len(asked) == len(set(asked))
    for region in of.regions:
        for signal in ("queue_depth", "running_jobs", "gpu_utilization", "cpu_utilization"):
            assert SignalKey(signal, region.name) in covered
        for instance_type in of.scored_instance_types:
            for signal in ("spot_placement", "spot_price_usd_per_hour", "spot_price_trend"):
                assert SignalKey(signal, region.name, instance_type) in covered
        assert SignalKey("capacity_block_offers", region.name, "p5.48xlarge") in covered


def test_what_still_holds_is_known_as_it_was_answered(clients: AwsClients) -> None:
    made = plan(
        clients,
        settings(CLOUD),
        {"us-east-1": answered(HOUR_S, *ALL_OF_T3)},
    )

    assert names(made) == {
        "job queue of us-east-1",
        "metrics of us-east-1",
        "spot prices of us-east-1",
    }
    assert made.known[SignalKey("spot_placement", "us-east-1", "t3.medium")] == Reading.of(
        0.5, observed_at_s=NOW_S - HOUR_S
    )


@pytest.mark.parametrize(
    ("age_s", "due"),
    [
        (6 * HOUR_S - 1, set()),
        (6 * HOUR_S, {"spot placement"}),
        (24 * HOUR_S, {"spot placement", "on-demand prices", "spot price trends"}),
    ],
)
def test_each_source_is_asked_again_after_its_own_time(
    clients: AwsClients, age_s: float, due: set[str]
) -> None:
    made = plan(clients, settings(CLOUD), {"us-east-1": answered(age_s, *ALL_OF_T3)})

    asked = {name.split(" of ")[0] for name in names(made)}
    assert asked - {"job queue", "metrics", "spot prices"} == due


def test_a_shared_call_is_due_for_all_when_one_region_lacks_its_answer(clients: AwsClients) -> None:
    made = plan(clients, settings(CLOUD, OTHER), {"us-east-1": answered(HOUR_S, *ALL_OF_T3)})

    [pool] = [probe for probe in made.probes if probe.name.startswith("spot placement")]
    assert {key.region for key in pool.expects} == {"us-east-1", "eu-west-1"}
    assert not any(key.signal == "spot_placement" for key in made.known)


def test_a_region_without_a_memory_is_left_out_but_named_in_the_shared_call(
    clients: AwsClients,
) -> None:
    of = settings(CLOUD, OTHER)
    made = plan_sweep(
        of,
        {"us-east-1": RegionMemory()},
        JobQueues({}, now_s=NOW_S),
        clients,
        lambda name: name,
        now_s=NOW_S,
    )

    assert not any("eu-west-1" in name for name in names(made))
    [pool] = [probe for probe in made.probes if probe.name.startswith("spot placement")]
    assert "eu-west-1" in {key.region for key in pool.expects}


def test_regions_beyond_what_a_call_may_name_are_scored_too_in_groups_that_stay(
    clients: AwsClients,
) -> None:
    regions = [msgspec.structs.replace(OTHER, name=f"us-made-{number}") for number in range(12)]
    first_ten = {region.name: answered(HOUR_S, *ALL_OF_T3) for region in regions[:10]}

    cold, warm, cut = (
        [
            [key.region for key in probe.expects]
            for probe in plan(clients, settings(*some), memories).probes
            if probe.name.startswith("spot placement")
        ]
        for some, memories in ((regions, {}), (regions, first_ten), (regions[:11], {}))
    )

    names = [region.name for region in regions]
    assert cold == [names[:10], names[10:]]
    assert warm == [names[10:]]
    assert cut[0] == cold[0]


def test_what_is_not_configured_is_missing_and_not_asked_for(clients: AwsClients) -> None:
    made = plan(clients, settings(OTHER))

    assert not any(name.startswith(("job queue", "metrics")) for name in names(made))
    for signal in ("queue_depth", "gpu_utilization"):
        assert made.known[SignalKey(signal, "eu-west-1")].status == "missing"


def test_the_flow_of_a_queue_is_read_once_its_url_is_known(clients: AwsClients) -> None:
    no_cluster = msgspec.structs.replace(CLOUD, cluster_name=None)
    queue = RegionMemory(
        swept_at_s=NOW_S - 300, job_queue=JobQueue("https://sqs/0/jobs", NOW_S - HOUR_S)
    )

    assert "metrics of us-east-1" not in names(plan(clients, settings(no_cluster)))
    assert "metrics of us-east-1" in names(
        plan(clients, settings(no_cluster), {"us-east-1": queue})
    )


def test_a_region_outside_aws_asks_its_fleet_and_nobody_else(clients: AwsClients) -> None:
    made = plan(clients, settings(LAB, types=("t3.medium", "p5.48xlarge")))

    assert names(made) == {"fleet telemetry of lab-1"}
    for instance_type in ("t3.medium", "p5.48xlarge"):
        key = SignalKey("spot_placement", "lab-1", instance_type)
        assert made.known[key].status == "not_offered"


def test_a_region_of_aws_may_ask_its_fleet_for_its_load(clients: AwsClients) -> None:
    made = plan(clients, settings(msgspec.structs.replace(CLOUD, telemetry="fleet")))

    asked = {name.split(" of ")[0] for name in names(made)}
    assert "fleet telemetry" in asked
    assert asked.isdisjoint({"job queue", "metrics"})
    assert "spot prices" in asked


def test_price_trends_take_turns_those_asked_for_longest_ago_first(clients: AwsClients) -> None:
    types = tuple(f"m{number}.large" for number in range(12))
    ages_h = {name: 25 + number for number, name in enumerate(types[:11])}
    memory = RegionMemory(
        swept_at_s=NOW_S - 300,
        answers={
            f"spot_price_trend {name}": Answer(NOW_S - hours * HOUR_S, 0.1, "ok")
            for name, hours in ages_h.items()
        },
    )
    made = plan(clients, settings(CLOUD, types=types), {"us-east-1": memory})

    [trends] = [probe for probe in made.probes if probe.name.startswith("spot price trends")]
    never_asked, youngest_two = "m11.large", {"m0.large", "m1.large"}
    assert {key.instance_type for key in trends.expects} == set(types) - youngest_two
    assert never_asked in {key.instance_type for key in trends.expects}
    for name in youngest_two:
        key = SignalKey("spot_price_trend", "us-east-1", name)
        assert made.known[key].value == 0.1  # until its turn comes


def test_the_first_sweep_of_a_region_asks_for_no_trend(clients: AwsClients) -> None:
    made = plan(clients, settings(CLOUD), {"us-east-1": RegionMemory()})

    assert not any(name.startswith("spot price trends") for name in names(made))
    key = SignalKey("spot_price_trend", "us-east-1", "t3.medium")
    assert made.known[key] == Reading.absent("missing", "its turn is yet to come")


def test_made_ahead_are_the_clients_of_sources_that_are_asked_in_each_sweep() -> None:
    clients = create_autospec(AwsClients, instance=True)
    clients.is_aws_region.side_effect = lambda region: region != LAB.name
    fleet = msgspec.structs.replace(CLOUD, name="eu-north-1", telemetry="fleet")

    make_clients_ahead(settings(CLOUD, OTHER, fleet, LAB), clients)

    made = [one for one in clients.method_calls if one[0] != "is_aws_region"]
    assert sorted(made) == [
        call.cloudwatch("us-east-1"),
        call.ec2("eu-north-1"),
        call.ec2("eu-west-1"),
        call.ec2("us-east-1"),
        call.sqs("us-east-1"),
    ]
