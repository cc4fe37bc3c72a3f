"""What is said to somebody who asks, before launching, where to launch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast.errors import InvalidConfiguration
from fleetcast.scoring import Reading
from fleetcast.selection import (
    Recommendation,
    ScoredRegion,
    rank_regions,
    recommend,
)

NOW_S = 1_800_000_000.0
MAX_SCORE_AGE_S = 900.0


def seen(value: float) -> Reading:
    return Reading(value=value, status="ok", observed_at_s=NOW_S - 30)


REFUSED = Reading(status="refused", error="AccessDenied: not allowed")
UNCONFIGURED = Reading(status="missing", error="the region has no cluster")
LAST_GOOD = Reading(value=8, status="stale", observed_at_s=NOW_S - 9000, error="Throttling")


def scored(
    region: str,
    score: float = 0.3,
    *,
    missing: int = 0,
    age_s: float = 60.0,
    reasons: tuple[str, ...] = ("empty queue",),
    **signals: Reading,
) -> ScoredRegion:
    return ScoredRegion(
        region=region,
        score=score,
        missing_scored_signals=missing,
        telemetry_status="complete" if not missing else "unavailable",
        computed_at_s=NOW_S - age_s,
        signals=signals or {"queue_depth": seen(0)},
        reasons=reasons,
    )


def ask(
    *scores: ScoredRegion,
    unscored: tuple[str, ...] = (),
    default_region: str | None = None,
    gpus: int = 0,
    gpu_required: bool = False,
) -> Recommendation:
    regions = [*(score.region for score in scores), *unscored]
    return recommend(
        regions,
        {score.region: score for score in scores},
        default_region=default_region or regions[0],
        now_s=NOW_S,
        max_score_age_s=MAX_SCORE_AGE_S,
        gpus=gpus,
        gpu_required=gpu_required,
    )


def test_the_lowest_score_is_recommended_with_its_reasons() -> None:
    answer = ask(
        scored("eu-west-1", 0.5),
        scored("us-east-1", 0.2, reasons=("empty queue", "58% GPU available")),
    )

    assert answer.outcome == "recommended"
    assert (answer.region, answer.score, answer.telemetry_status) == ("us-east-1", 0.2, "complete")
    assert answer.reason == "empty queue; 58% GPU available"
    assert [place.region for place in answer.regions] == ["us-east-1", "eu-west-1"]


def test_a_region_that_nothing_speaks_for_is_recommended_by_its_score() -> None:
    assert ask(scored("us-east-1", 0.41, reasons=())).reason == "score 0.41"


def test_a_region_with_missing_signals_is_not_recommended_before_one_with_all() -> None:
    answer = ask(scored("eu-west-1", 0.1, missing=1), scored("us-east-1", 0.9))

    assert answer.region == "us-east-1"


def test_a_stale_score_is_said_to_be_stale_before_anything_else() -> None:
    answer = ask(scored("us-east-1", age_s=1500))

    assert answer.reason == "score is stale (25 min old); empty queue"


def test_a_score_from_the_future_is_said_to_be_ahead() -> None:
    answer = ask(scored("us-east-1", age_s=-1500))

    assert answer.reason == "score is stale (25 min ahead of the clock); empty queue"


def test_errors_of_the_recommended_region_are_told_with_it() -> None:
    answer = ask(
        scored("us-east-1", queue_depth=seen(0), spot_placement=REFUSED),
        scored("eu-west-1", 0.9, queue_depth=REFUSED),
    )

    assert answer.errors == ("us-east-1 spot_placement: refused: AccessDenied: not allowed",)


def test_what_a_region_does_not_offer_is_no_error() -> None:
    not_offered = Reading(status="not_offered", error="UnsupportedOperation")

    assert ask(scored("us-east-1", queue_depth=seen(0), blocks=not_offered)).errors == ()


def test_equally_good_regions_are_those_that_launches_spread_over() -> None:
    regions = [scored("us-east-1", 0.3), scored("eu-west-1", 0.32), scored("us-west-2", 0.4)]
    scores = {region.region: region for region in regions}

    firsts = {
        rank_regions(
            scores,
            scores,
            default_region="us-east-1",
            launch_id=f"r-{launch}",
            now_s=NOW_S,
            max_score_age_s=MAX_SCORE_AGE_S,
        )[0].region
        for launch in range(100)
    }

    assert set(ask(*regions).equally_good) == firsts == {"us-east-1", "eu-west-1"}


# --- no answer -----------------------------------------------------------------------------


def test_no_regions_configured_is_said() -> None:
    answer = recommend([], {}, default_region="", now_s=NOW_S, max_score_age_s=MAX_SCORE_AGE_S)

    assert answer == Recommendation(outcome="no_regions", reason="no regions configured")


def test_when_every_check_failed_the_real_errors_are_told_and_no_region_is() -> None:
    answer = ask(
        scored("us-east-1", missing=2, queue_depth=REFUSED, cpu_utilization=UNCONFIGURED),
        scored("eu-west-1", missing=2, queue_depth=LAST_GOOD),
    )

    assert answer.outcome == "all_failed"
    assert answer.region is None
    assert answer.reason.startswith("every check failed: ")
    assert "us-east-1: queue_depth: refused: AccessDenied: not allowed" in answer.reason
    assert "eu-west-1: queue_depth: stale: Throttling" in answer.reason
    assert len(answer.errors) == 3
    assert len(answer.regions) == 2


def test_without_telemetry_anywhere_it_is_the_default_region() -> None:
    answer = ask(
        scored("eu-west-1", 0.1, missing=2, queue_depth=UNCONFIGURED),
        scored("us-east-1", 0.9, missing=2, queue_depth=UNCONFIGURED),
        default_region="us-east-1",
    )

    assert answer.outcome == "no_telemetry"
    assert answer.region == "us-east-1"
    assert answer.reason == "no telemetry anywhere: default region us-east-1"


def test_before_the_first_sweep_it_is_the_default_region() -> None:
    answer = ask(unscored=("eu-west-1", "us-east-1"), default_region="us-east-1")

    assert answer.outcome == "no_telemetry"
    assert (answer.region, answer.score) == ("us-east-1", None)
    assert answer.regions[1].reasons == ("no score yet",)


def test_one_region_that_could_be_read_is_enough_for_an_answer() -> None:
    answer = ask(
        scored("us-east-1", missing=2, queue_depth=REFUSED),
        scored("eu-west-1", queue_depth=seen(3)),
    )

    assert (answer.outcome, answer.region) == ("recommended", "eu-west-1")


def test_a_price_alone_is_no_telemetry_but_not_every_check_failed() -> None:
    answer = ask(
        scored("us-east-1", missing=2, queue_depth=REFUSED, spot_price_ratio=seen(0.3)),
    )

    assert (answer.outcome, answer.region) == ("no_telemetry", "us-east-1")


# --- GPUs ----------------------------------------------------------------------------------


def test_too_few_free_gpus_exclude_a_region_and_are_said() -> None:
    answer = ask(
        scored("us-east-1", 0.1, free_gpus=seen(1), total_gpus=seen(8)),
        scored("eu-west-1", 0.9, free_gpus=seen(4), total_gpus=seen(8)),
        gpus=4,
    )

    assert answer.region == "eu-west-1"
    assert [(place.region, place.excluded) for place in answer.regions] == [
        ("eu-west-1", None),
        ("us-east-1", "4 GPUs asked for, 1 free"),
    ]


def test_as_many_free_gpus_as_asked_for_are_enough() -> None:
    assert ask(scored("us-east-1", free_gpus=seen(4)), gpus=4).outcome == "recommended"


def test_a_region_with_fewer_gpus_in_all_is_excluded_though_the_free_ones_are_unread() -> None:
    answer = ask(scored("us-east-1", free_gpus=REFUSED, total_gpus=seen(0)), gpus=1)

    # Nothing says that telemetry is there to go by, but the GPUs are not.
    assert answer.outcome == "no_gpus"
    assert answer.reason == "no region has the GPUs: us-east-1: 1 GPU asked for, 0 there"
    assert answer.region is None


@pytest.mark.parametrize("free_gpus", [REFUSED, LAST_GOOD])
def test_unread_gpus_exclude_a_region_only_when_gpus_are_required(free_gpus: Reading) -> None:
    region = scored("us-east-1", queue_depth=seen(0), free_gpus=free_gpus)

    asked = ask(region, gpus=1)
    assert (asked.region, asked.reason) == (
        "us-east-1",
        "not known how many GPUs are free; empty queue",
    )
    required = ask(region, gpus=1, gpu_required=True)
    assert required.region is None
    assert required.regions[0].excluded == "1 GPU required, and not known how many are free"


def test_required_gpus_are_at_least_one() -> None:
    assert ask(scored("us-east-1", free_gpus=seen(0)), gpu_required=True).outcome == "no_gpus"
    assert ask(scored("us-east-1", free_gpus=seen(1)), gpu_required=True).outcome == "recommended"


def test_gpus_not_asked_for_exclude_nothing() -> None:
    assert ask(scored("us-east-1", free_gpus=seen(0))).region == "us-east-1"


def test_a_default_region_without_the_gpus_is_not_chosen_blindly() -> None:
    answer = ask(
        scored("us-east-1", missing=2, total_gpus=seen(0)),
        scored("eu-west-1", missing=2, total_gpus=seen(8)),
        gpus=1,
    )

    assert (answer.outcome, answer.region) == ("no_telemetry", "eu-west-1")
    assert answer.reason == "no telemetry anywhere, and the default region us-east-1 is excluded"


# --- the order that launches go by ----------------------------------------------------------


def test_a_default_region_that_is_none_of_the_regions_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="default_region"):
        ask(scored("us-east-1"), default_region="nowhere")


@given(
    st.lists(
        st.builds(
            scored,
            region=st.sampled_from(["a-1", "b-1", "c-1", "d-1"]),
            score=st.floats(0, 1),
            missing=st.integers(0, 2),
            age_s=st.floats(-3000, 3000),
        ),
        min_size=1,
        unique_by=lambda score: score.region,
    )
)
def test_the_recommended_region_is_one_that_a_launch_may_go_to_first(
    scores: list[ScoredRegion],
) -> None:
    answer = ask(*scores)

    first = rank_regions(
        [score.region for score in scores],
        {score.region: score for score in scores},
        default_region=scores[0].region,
        launch_id="r-1",
        now_s=NOW_S,
        max_score_age_s=MAX_SCORE_AGE_S,
    )[0]
    assert answer.region in answer.equally_good
    assert first.region in answer.equally_good
