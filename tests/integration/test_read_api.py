"""The read API's function whole, on moto."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from fleetcast.instance_types import InstanceType
from fleetcast.read_answers import RecommendationAnswer, ScoresAnswer
from fleetcast.scoring import DEFAULT_WEIGHTS
from lambdas.read_api import handler
from lambdas.settings import Region, encode_settings
from tests.captured_logs import captured_logs
from tests.read_api import NOW_S, SETTINGS, ReadApi, call, read_api, reading
from tests.tables import REGION_SCORES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadApi]:
    with read_api(monkeypatch) as api:
        yield api


def recommendation(query: str = "") -> RecommendationAnswer:
    response = call(f"/v1/recommendation?{query}")
    assert response["statusCode"] == 200, response
    return msgspec.json.decode(response["body"], type=RecommendationAnswer)


def scores(query: str = "") -> ScoresAnswer:
    response = call(f"/v1/scores?{query}")
    assert response["statusCode"] == 200, response
    return msgspec.json.decode(response["body"], type=ScoresAnswer)


# --- scores --------------------------------------------------------------------------------


def test_scores_of_a_type_are_told_with_every_signal_best_first(api: ReadApi) -> None:
    api.put("us-east-1", 0.4, instance_type="t3.medium")
    api.put(
        "eu-west-1",
        0.25,
        instance_type="t3.medium",
        missing=1,
        reasons=["telemetry is partial: GPU", "low queue depth (3)"],
        queue_depth=reading(3, age_s=12.5),
        gpu_utilization=reading(None, status="refused", error="AccessDenied: no"),
    )

    status, answer = api.get("/v1/scores?instance-type=t3.medium")

    assert status == 200
    assert (answer["instance_type"], answer["scored_type"]) == ("t3.medium", "t3.medium")
    assert answer["answered_at_s"] == NOW_S
    assert [place["region"] for place in answer["regions"]] == ["us-east-1", "eu-west-1"]
    assert answer["regions"][1] == {
        "region": "eu-west-1",
        "freshness": "fresh",
        "score": 0.25,
        "age_s": 60.0,
        "missing_scored_signals": 1,
        "telemetry_status": "partial",
        "reasons": ["telemetry is partial: GPU", "low queue depth (3)"],
        "excluded": None,
        "signals": {
            "queue_depth": {
                "value": 3,
                "status": "ok",
                "observed_at_s": NOW_S - 12.5,
                "error": None,
            },
            "gpu_utilization": {
                "value": None,
                "status": "refused",
                "observed_at_s": None,
                "error": "AccessDenied: no",
            },
        },
    }


def test_a_type_without_scores_of_its_own_has_those_that_need_no_type(api: ReadApi) -> None:
    api.put("us-east-1", 82.5)

    answer = scores("instance-type=c7i.large")

    assert (answer.instance_type, answer.scored_type) == ("c7i.large", None)
    assert answer.regions[0].score == 82.5


def test_without_a_type_the_scores_that_need_none_are_told(api: ReadApi) -> None:
    api.put("us-east-1", 0.1, instance_type="t3.medium")
    api.put("us-east-1", 42.0)

    assert scores().regions[0].score == 42.0


@pytest.mark.usefixtures("api")
def test_regions_that_no_sweep_has_scored_are_told_too() -> None:
    answer = scores()

    assert [(place.region, place.freshness, place.score) for place in answer.regions] == [
        ("us-east-1", "unscored", None),
        ("eu-west-1", "unscored", None),
    ]


def test_a_region_that_is_not_configured_any_more_is_not_told(api: ReadApi) -> None:
    api.put("ap-south-1", 0.0)

    assert "ap-south-1" not in {place.region for place in scores().regions}


@pytest.mark.usefixtures("api")
def test_the_weights_are_told_with_the_scores() -> None:
    assert scores().weights == DEFAULT_WEIGHTS


def test_scores_beyond_one_page_of_the_table_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"lab-{number}" for number in range(40)]
    regions = tuple(Region(name=name, nats_url="tls://a:4222") for name in names)
    settings = msgspec.structs.replace(SETTINGS, regions=regions, default_region="lab-0")
    with read_api(monkeypatch, settings) as api:
        for name in names:  # some 40 KB each: a page is 1 MB
            api.put(name, 1, queue_depth=reading(None, status="failed", error="x" * 40_000))

        answer = scores()

    assert {place.freshness for place in answer.regions} == {"fresh"}
    assert len(answer.regions) == 40


# --- recommendation ------------------------------------------------------------------------


def test_a_type_is_recommended_a_region_by_its_own_scores(api: ReadApi) -> None:
    api.put("us-east-1", 0.5, instance_type="t3.medium")
    api.put("eu-west-1", 0.2, instance_type="t3.medium", reasons=["empty queue"])
    api.put("us-east-1", 0.0)
    api.put("eu-west-1", 99.0)

    answer = recommendation("instance-type=t3.medium")

    assert (answer.outcome, answer.region, answer.score) == ("recommended", "eu-west-1", 0.2)
    assert (answer.scored_type, answer.reason) == ("t3.medium", "empty queue")
    assert recommendation().region == "us-east-1"


def test_regions_without_the_gpus_are_excluded_and_say_so(api: ReadApi) -> None:
    api.put("us-east-1", 0.0, free_gpus=reading(1), total_gpus=reading(8))
    api.put("eu-west-1", 9.0, free_gpus=reading(2))

    answer = recommendation("gpus=2&gpu-required=true")

    assert answer.region == "eu-west-1"
    assert answer.regions[-1].excluded == "2 GPUs asked for, 1 free"


def test_a_fleet_that_no_check_succeeds_for_gets_the_errors_and_no_region(api: ReadApi) -> None:
    for region in ("us-east-1", "eu-west-1"):
        refused = reading(None, status="refused", error="AccessDenied: no")
        api.put(region, 2000.0, missing=2, queue_depth=refused)

    answer = recommendation()

    assert (answer.outcome, answer.region) == ("all_failed", None)
    assert "AccessDenied: no" in answer.reason


@pytest.mark.usefixtures("api")
def test_before_the_first_sweep_the_default_region_is_recommended() -> None:
    assert recommendation().reason == "no telemetry anywhere: default region us-east-1"


def test_a_recommendation_leaves_one_line_that_says_what_was_decided(api: ReadApi) -> None:
    api.put("us-east-1", 1.0, reasons=["empty queue"])

    with captured_logs("read_api") as lines:
        recommendation("gpus=0")

    [fields] = lines.fields("recommended")
    assert (fields["region"], fields["reason"]) == ("us-east-1", "empty queue")


# --- errors --------------------------------------------------------------------------------


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("/v1/scores?instance-type=t3.huge", "InvalidParameterValue", "t3.huge"),
        ("/v1/scores?instance-type=", "InvalidParameterValue", "instance-type"),
        ("/v1/scores?type=t3.medium", "UnknownParameter", "type"),
        ("/v1/scores?gpus=1", "UnknownParameter", "gpus"),
        ("/v1/recommendation?gpus=-1", "InvalidParameterValue", "whole number"),
        ("/v1/recommendation?gpus=two", "InvalidParameterValue", "gpus"),
        ("/v1/recommendation?gpus=1.5", "InvalidParameterValue", "gpus"),
        ("/v1/recommendation?gpus=²", "InvalidParameterValue", "gpus"),
        ("/v1/recommendation?gpus=" + "9" * 5000, "InvalidParameterValue", "gpus"),
        ("/v1/recommendation?gpus=1000001", "InvalidParameterValue", "0 to 1000000"),
        ("/v1/recommendation?gpus=1&gpus=2", "InvalidParameterValue", "once"),
        ("/v1/recommendation?gpu-required=yes", "InvalidParameterValue", "true or false"),
        (
            "/v1/recommendation?gpus=1&instance-type=t3.medium",
            "InvalidParameterCombination",
            "no GPUs",
        ),
        ("/v1/nothing", "InvalidAction", "/v1/nothing"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(
    api: ReadApi, target: str, code: str, words: str
) -> None:
    status, answer = api.get(target)

    assert status == 400
    assert answer["error"]["code"] == code
    assert words in answer["error"]["message"]


def test_a_table_that_cannot_be_read_is_said_to_be_worth_a_retry(api: ReadApi) -> None:
    api.dynamodb.delete_table(TableName=REGION_SCORES)

    status, answer = api.get("/v1/scores")

    assert (status, answer["error"]["code"]) == (503, "ServiceUnavailable")


def test_a_row_that_no_sweep_could_have_written_is_an_internal_error(api: ReadApi) -> None:
    api.put("us-east-1", 1.0, queue_depth={"value": "three", "status": "ok", "observed_at": 1})

    status, answer = api.get("/v1/scores")

    assert (status, answer["error"]["code"]) == (500, "InternalError")
    assert "three" not in answer["error"]["message"]


def test_the_function_reads_its_settings_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = InstanceType(name="lab.gpu", vcpu=4, memory_mib=4096, gpus=1)
    settings = msgspec.structs.replace(SETTINGS, instance_types=(own,), tie_band=0.0)
    for name, value in encode_settings(settings).items():
        monkeypatch.setenv(name, value)
    handler.at_cold_start.cache_clear()

    services = handler.at_cold_start()
    handler.at_cold_start.cache_clear()

    assert services.settings == settings
    assert services.instance_types.lookup("lab.gpu") == own


def test_the_function_starts_without_loading_boto3() -> None:
    program = f"import sys, {handler.__name__}; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-B", "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()

    assert "boto3" not in loaded
