"""I9: make any one call of a sweep fail, whatever is remembered, and no region ranks better for it.

The whole pipeline runs: collectors, real botocore clients, scoring, ranking. EC2 and Pricing are
answered over HTTP by the fakes, the other services by botocore's Stubber.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcast.local.aws_fakes import AwsFakes, Failure, FailureKind, Prices, Scenario
from fleetcast.scoring import Weights
from fleetcast.selection import RegionScore, rank_regions
from lambdas.region_scores import ANY_TYPE, ScoreRow
from lambdas.score_regions.clients import AwsClients
from lambdas.score_regions.memory import Answer, JobQueue, RegionMemory, Sample
from lambdas.score_regions.plan import refresh_periods
from lambdas.score_regions.scores import score_region
from lambdas.score_regions.sweep import read_signals
from lambdas.settings import Region, ScoreRegionsSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REGIONS = ("us-east-1", "us-west-2", "eu-west-1")
TYPES = ("t3.medium", "p5.48xlarge")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW_S = NOW.timestamp()
SETTINGS = ScoreRegionsSettings(
    region_scores_table="RegionScores",
    regions=tuple(
        Region(name=name, nats_url=f"tls://{name}:4222", job_stack_name="jobs", cluster_name="gpus")
        for name in REGIONS
    ),
    scored_instance_types=TYPES,
    weights=Weights(
        spot_placement=0.2,
        spot_price_ratio=0.2,
        queue_depth=0.2,
        gpu_utilization=0.1,
        running_jobs=0.1,
        capacity_block_trend=0.1,
        spot_price_trend=0.1,
    ),
)


class Load(NamedTuple):
    """What the services say of one region; None: they leave it out."""

    queue_depth: int | None
    running_jobs: int | None
    gpu_utilization: float | None
    cpu_utilization: float | None


class World(NamedTuple):
    """What everybody would answer, and what is remembered of their answers."""

    loads: dict[str, Load]
    prices: dict[str, dict[str, Prices]]
    spot_placement: dict[str, dict[str, int]]
    capacity_blocks: dict[str, dict[str, tuple[int, ...]]]
    memories: dict[str, RegionMemory]


class Break(NamedTuple):
    """One call that fails: a region's, or one of a type or its pool, which all regions share."""

    action: str
    region: str | None
    instance_type: str | None
    kind: FailureKind


def maybe(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | strategy


def by_region(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(dict.fromkeys(REGIONS, strategy))


def by_type(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(dict.fromkeys(TYPES, strategy))


counts = st.none() | st.integers(0, 2000)
percentages = maybe(st.floats(0, 100))
usd = st.floats(0.001, 100)
trends = st.floats(-1, 1)

# Ages on both sides of what any answer holds for.
past = st.floats(1, 2 * 86_400).map(lambda age_s: NOW_S - age_s)
OF_REGION = {
    "queue_depth": st.floats(0, 2000),
    "running_jobs": st.floats(0, 2000),
    "gpu_utilization": st.floats(0, 100),
    "cpu_utilization": st.floats(0, 100),
}
OF_TYPE = {
    "spot_placement": st.floats(0.1, 1),
    "spot_price_usd_per_hour": usd,
    "on_demand_price_usd_per_hour": usd,
    "spot_price_trend": trends,
    "capacity_block_offers": st.floats(0, 20),
    "capacity_block_window_trend": trends,
}
SIGNALS = OF_REGION | {
    f"{signal} {name}": value for signal, value in OF_TYPE.items() for name in TYPES
}


def sparse(values: Mapping[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[Any, Any]]:
    return st.fixed_dictionaries({}, optional=dict(values))


answers = {
    signal: st.builds(Answer, past, value, st.just("ok"))
    | st.builds(Answer, past, st.none(), st.sampled_from(["missing", "not_offered"]), st.just("no"))
    for signal, value in SIGNALS.items()
    if signal.partition(" ")[0] in refresh_periods(SETTINGS)
}
TODAY = int(NOW_S // 86_400)
daily_offers = st.lists(st.floats(0, 20), max_size=20).map(
    lambda counts: {TODAY - 1 - days: count for days, count in enumerate(counts)}
)
memories = st.builds(
    RegionMemory,
    swept_at_s=past,
    answers=sparse(answers),
    last_good=sparse({signal: st.builds(Sample, value, past) for signal, value in SIGNALS.items()}),
    series=sparse({"capacity_block_offers p5.48xlarge": daily_offers}),
    job_queue=st.none() | st.builds(JobQueue, st.just("https://sqs/0/jobs"), past),
)
worlds = st.builds(
    World,
    loads=by_region(st.builds(Load, counts, counts, percentages, percentages)),
    prices=by_region(
        by_type(
            st.builds(
                Prices,
                on_demand_usd_per_hour=maybe(usd),
                spot_usd_per_hour=st.dictionaries(st.sampled_from("ab"), usd),
            )
        )
    ),
    spot_placement=by_region(sparse(dict.fromkeys(TYPES, st.integers(1, 10)))),
    capacity_blocks=sparse(
        dict.fromkeys(
            REGIONS,
            st.lists(st.integers(0, 3), max_size=3).map(
                lambda weeks: {"p5.48xlarge": tuple(weeks)}
            ),
        )
    ),
    memories=by_region(memories),
)
kinds: st.SearchStrategy[FailureKind] = st.sampled_from(
    ["access_denied", "throttled", "invalid_action", "nothing"]
)
breaks_of_a_region = st.builds(
    Break,
    action=st.sampled_from(
        [
            "DescribeStacks",
            "GetQueueAttributes",
            "GetMetricData",
            "DescribeSpotPriceHistory",
            "DescribeCapacityBlockOfferings",
        ]
    ),
    region=st.sampled_from(REGIONS),
    instance_type=st.none(),
    kind=kinds,
)
breaks_of_a_type = st.builds(
    Break,
    action=st.sampled_from(["GetProducts", "GetSpotPlacementScores"]),
    region=st.none(),
    instance_type=st.sampled_from(TYPES),
    kind=kinds,
)


def no_credentials(name: str) -> str:
    raise AssertionError(f"no region asks its fleet, and yet for {name}")


# Of the services that the Stubber answers for.
ERROR_CODES: dict[FailureKind, str] = {
    "access_denied": "AccessDenied",
    "throttled": "ThrottlingException",
    "invalid_action": "InvalidAction",
}


class Cloud:
    """The sweep's clients, and what answers them."""

    def __init__(self) -> None:
        self.scenario = Scenario()
        self.clients: AwsClients

    def sweep(self, world: World, broken: Break | None = None) -> dict[tuple[str, str], ScoreRow]:
        """Read and score a world; the rows by type and region."""
        failures = (
            []
            if broken is None
            else [
                Failure(
                    action=broken.action,
                    kind=broken.kind,
                    region=broken.region,
                    instance_type=broken.instance_type,
                )
            ]
        )
        self.scenario = Scenario(
            prices=world.prices,
            spot_placement=world.spot_placement,
            capacity_blocks=world.capacity_blocks,
            failures=failures,
        )
        with ExitStack() as stubs:
            for name, load in world.loads.items():
                self._stub(stubs, name, load, broken if broken and broken.region == name else None)
            seen = read_signals(
                SETTINGS, world.memories, self.clients, no_credentials, now_s=NOW_S, within_s=60
            )
        return {
            (row.instance_type, region): row
            for region, of in seen.items()
            for row in score_region(
                SETTINGS, region, of.readings, of.memory, sweep_id="sweep", computed_at_s=NOW_S
            ).rows
        }

    def _stub(self, stubs: ExitStack, region: str, load: Load, broken: Break | None) -> None:
        answers = [
            (self.clients.cloudformation(region), "describe_stacks", stack_answer(region)),
            (self.clients.sqs(region), "get_queue_attributes", queue_answer(load)),
            (self.clients.cloudwatch(region), "get_metric_data", metrics_answer(load)),
        ]
        empty: dict[str, dict[str, object]] = {
            "describe_stacks": {"Stacks": []},
            "get_metric_data": {"MetricDataResults": []},
        }
        for client, method, answer in answers:
            stubber = stubs.enter_context(Stubber(client))
            action = client.meta.method_to_api_mapping[method]
            if broken is None or broken.action != action:
                stubber.add_response(method, answer)
            elif broken.kind == "nothing":
                stubber.add_response(method, empty.get(method, {}))
            else:
                stubber.add_client_error(method, ERROR_CODES[broken.kind])


def stack_answer(region: str) -> dict[str, object]:
    output = {"OutputKey": "JobQueueUrl", "OutputValue": f"https://sqs.{region}.amazonaws.com/0/q"}
    return {
        "Stacks": [
            {
                "StackName": "jobs",
                "CreationTime": NOW,
                "StackStatus": "CREATE_COMPLETE",
                "Outputs": [output],
            }
        ]
    }


def queue_answer(load: Load) -> dict[str, object]:
    attributes = {
        "ApproximateNumberOfMessages": load.queue_depth,
        "ApproximateNumberOfMessagesNotVisible": load.running_jobs,
    }
    return {
        "Attributes": {name: str(value) for name, value in attributes.items() if value is not None}
    }


def metrics_answer(load: Load) -> dict[str, object]:
    metrics = {"gpu_utilization": load.gpu_utilization, "cpu_utilization": load.cpu_utilization}
    return {
        "MetricDataResults": [
            {
                "Id": name,
                "Timestamps": [NOW] if value is not None else [],
                "Values": [value] if value is not None else [],
                "StatusCode": "Complete",
            }
            for name, value in metrics.items()
        ]
    }


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    with (
        pytest.MonkeyPatch.context() as environment,
        AwsFakes(lambda: cloud.scenario) as fakes,
    ):
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_ENDPOINT_URL_EC2", fakes.url)
        environment.setenv("AWS_ENDPOINT_URL_PRICING", fakes.url)
        one_try = Config(retries={"total_max_attempts": 1})
        cloud.clients = AwsClients(boto3.session.Session(region_name="us-east-1"), one_try)
        yield cloud


def places(
    rows: dict[tuple[str, str], ScoreRow], instance_type: str, launch_id: str, default_region: str
) -> dict[str, int]:
    """Each region's place in the order of one launch, 0 is first."""
    scores = {
        region: RegionScore(
            region=region,
            score=row.score,
            missing_scored_signals=row.missing_scored_signals,
            telemetry_status=row.telemetry_status,
            computed_at_s=row.computed_at_s,
        )
        for (scored_type, region), row in rows.items()
        if scored_type == instance_type
    }
    ranked = rank_regions(
        REGIONS,
        scores,
        default_region=default_region,
        launch_id=launch_id,
        now_s=NOW_S,
        max_score_age_s=900,
    )
    return {place.region: at for at, place in enumerate(ranked)}


@settings(max_examples=60, deadline=None)
@given(
    world=worlds,
    broken=breaks_of_a_region,
    launch_id=st.sampled_from(["r-1", "r-2", "r-3", "r-4"]),
    default_region=st.sampled_from(REGIONS),
)
def test_a_region_whose_call_fails_ranks_no_better_and_the_others_stay_as_they_are(
    cloud: Cloud, world: World, broken: Break, launch_id: str, default_region: str
) -> None:
    assert broken.region is not None
    before, after = cloud.sweep(world), cloud.sweep(world, broken)

    for instance_type in (ANY_TYPE, *TYPES):
        place_before = places(before, instance_type, launch_id, default_region)[broken.region]
        place_after = places(after, instance_type, launch_id, default_region)[broken.region]
        assert place_after >= place_before
    for (instance_type, region), row in before.items():
        if region != broken.region:
            assert after[instance_type, region] == row
    assert_gaps_are_recorded(before, after)


@settings(max_examples=40, deadline=None)
@given(world=worlds, broken=breaks_of_a_type)
def test_a_failing_call_that_regions_share_makes_no_score_better(
    cloud: Cloud, world: World, broken: Break
) -> None:
    before, after = cloud.sweep(world), cloud.sweep(world, broken)

    for key, row in before.items():
        assert after[key].missing_scored_signals == row.missing_scored_signals
        assert after[key].score >= row.score
        if key[0] != broken.instance_type:
            assert after[key] == row
    assert_gaps_are_recorded(before, after)


def assert_gaps_are_recorded(
    before: dict[tuple[str, str], ScoreRow], after: dict[tuple[str, str], ScoreRow]
) -> None:
    for key, row in before.items():
        for name, reading in row.signals.items():
            now = after[key].signals[name]
            assert now == reading or (now.status != "ok" and now.error)
