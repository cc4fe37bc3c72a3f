"""A launch in words: what somebody who was paged reads."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from fleetcast.launch_story import Ask, AskOutcome, LaunchStory, RegionVerdict
from fleetcast.launch_words import tell_launch
from fleetcast.read_answers import LaunchAnswer, LaunchedInstance
from fleetcast.selection import RankedRegion

NOW_S = 1_800_000_000.0
EAST, WEST, LAB = "us-east-1", "eu-west-1", "lab-1"


def launch(story: LaunchStory | None = None, **fields: Any) -> LaunchAnswer:  # noqa: ANN401 - of a struct
    given: dict[str, Any] = {
        "reservation_id": "r-0123456789abcdef0",
        "state": "refused",
        "instance_type": "t3.medium",
        "min_count": 1,
        "pinned": False,
        "launched_at_s": NOW_S - 185,
        "answered_at_s": NOW_S,
        "region": None,
        "undecided_until_s": None,
        "instances": (),
        "story": story,
    }
    return LaunchAnswer(**given | fields)


def ranked(region: str, score: float | None = 0.25, **fields: Any) -> RankedRegion:  # noqa: ANN401 - of a struct
    if score is None:
        return RankedRegion(region=region, freshness="unscored")
    given: dict[str, Any] = {
        "freshness": "fresh",
        "age_s": 60.0,
        "missing_scored_signals": 0,
        "telemetry_status": "complete",
    }
    return RankedRegion(region=region, score=score, **given | fields)


def ask(region: str, outcome: AskOutcome, **fields: Any) -> Ask:  # noqa: ANN401 - of a struct
    given: dict[str, Any] = {
        "subject": f"ec2.RunInstances.{region}.t3.medium",
        "attempt": 1,
        "count": 1,
        "began_ms": 3.14,
        "took_ms": 0.8,
    }
    return Ask(region=region, outcome=outcome, **given | fields)


def told(answer: LaunchAnswer) -> list[str]:
    return ["  " * line.depth + line.text for line in tell_launch(answer)]


def reasons(*regions: RankedRegion, asked_last: tuple[str, ...] = ()) -> list[str]:
    """Return why each region was tried when it was."""
    story = LaunchStory(ranked=regions, asked_last=asked_last)
    return [
        line.text
        for line in tell_launch(launch(story))
        if line.text.startswith(("tried", "asked last"))
    ]


# --- the whole story -----------------------------------------------------------------------


def test_a_refused_launch_is_told_from_its_end_to_its_asks() -> None:
    message = "There is no room for 1 x t3.medium now: us-east-1: no node has room; eu-west-1: ..."
    story = LaunchStory(
        ranked=(ranked(EAST, 0.2512), ranked(WEST, 0.5, freshness="stale", age_s=2400.0)),
        verdicts=(
            RegionVerdict(region=EAST, end="no_room", why="no node has room"),
            RegionVerdict(region=WEST, end="not_asked", why="connection refused"),
        ),
        asks=(
            ask(EAST, "full", node="n1"),
            ask(EAST, "no_responders", began_ms=5.0),
            ask(WEST, "unreachable", began_ms=1206.0, took_ms=1000.0, detail="connection refused"),
        ),
        error_code="InsufficientInstanceCapacity",
        error_message=message,
        took_ms=2210.0,
    )

    assert told(launch(story)) == [
        "r-0123456789abcdef0: refused after 2,210.0 ms (begun 2027-01-15 07:56:55 UTC, 3m ago)",
        "Wanted: 1 x t3.medium.",
        f"The caller was told InsufficientInstanceCapacity: {message}",
        "1. us-east-1: score 0.2512, fresh (1m old)",
        "  tried first: the lowest score",
        (
            "  +3.1 ms  ec2.RunInstances.us-east-1.t3.medium, 1 instance, attempt 1: node n1 was "
            "full when it arrived (a lost race, asked again at once) [0.8 ms]"
        ),
        (
            "  +5.0 ms  ec2.RunInstances.us-east-1.t3.medium, 1 instance, attempt 1: nobody "
            "listens, no node there has room [0.8 ms]"
        ),
        "  left: no node has room",
        "2. eu-west-1: score 0.5, stale (40m old)",
        "  tried after us-east-1: a stale score",
        (
            "  +1,206.0 ms  ec2.RunInstances.eu-west-1.t3.medium, 1 instance, attempt 1: the "
            "region could not be asked: connection refused [1,000.0 ms]"
        ),
        "  left, and whether it has room is not known: connection refused",
    ]


def test_a_placed_launch_says_on_which_nodes_and_which_regions_were_not_needed() -> None:
    story = LaunchStory(
        ranked=(ranked(EAST), ranked(WEST, 0.5)),
        verdicts=(RegionVerdict(region=EAST, end="placed"),),
        asks=(
            ask(EAST, "accepted", count=3, node="n1", detail="takes 2"),
            ask(EAST, "accepted", node="n2", detail="takes 1"),
        ),
        took_ms=7.0,
    )
    instances = tuple(
        LaunchedInstance(instance_id=f"i-{n}", state="running", region=EAST, zone=zone, node=node)
        for n, (node, zone) in enumerate([("n1", "us-east-1a"), ("n1", "us-east-1a"), ("n2", None)])
    )

    lines = told(launch(story, state="placed", region=EAST, min_count=2, instances=instances))

    assert lines[0].startswith("r-0123456789abcdef0: placed in us-east-1 after 7.0 ms")
    assert lines[1:4] == [
        "Wanted: 2 to 3 x t3.medium.",
        "  on node n1, zone us-east-1a: i-0 (running), i-1 (running)",
        "  on node n2: i-2 (running)",
    ]
    assert lines[6].endswith("3 instances, attempt 1: accepted by node n1: takes 2 [0.8 ms]")
    assert lines[8] == "  placed here"
    assert lines[-1] == "  not tried, the launch had ended"


def test_many_instances_of_a_node_are_counted() -> None:
    instances = tuple(
        LaunchedInstance(instance_id=f"i-{n}", state="running", region=EAST, node="n1")
        for n in range(1000)
    )

    [line] = [one for one in told(launch(state="placed", instances=instances)) if "i-0" in one]

    assert line.endswith("i-7 (running), and 992 more")


def test_a_launch_that_a_node_called_faulty_ends_where_it_was_asked() -> None:
    story = LaunchStory(
        ranked=(ranked(EAST), ranked(WEST, 0.5)),
        asks=(ask(EAST, "client_fault", node="n1", detail="no such image"),),
        error_code="InvalidAMIID.NotFound",
        error_message="no such image",
    )

    lines = told(launch(story))

    assert "The caller was told InvalidAMIID.NotFound: no such image" in lines
    assert any(
        "node n1 says that the request itself is at fault: no such image" in one for one in lines
    )
    assert "  the launch ended here" in lines


def test_asks_that_were_not_kept_are_counted() -> None:
    assert told(launch(LaunchStory(asks_left_out=12)))[-1] == "12 more asks were not kept."


@pytest.mark.parametrize("outcome", get_args(AskOutcome))
def test_every_outcome_has_words_with_or_without_a_node(outcome: AskOutcome) -> None:
    story = LaunchStory(
        ranked=(ranked(EAST),), asks=(ask(EAST, outcome), ask(EAST, outcome, node="n1"))
    )

    lines = told(launch(story))

    assert not any("{" in line or "None" in line for line in lines)


# --- launches without an end, or without a story -------------------------------------------


def test_a_launch_that_is_being_placed_says_until_when_a_function_may_be_at_work() -> None:
    lines = told(launch(state="placing", undecided_until_s=NOW_S + 15))

    assert lines[0].startswith("r-0123456789abcdef0: not decided (begun")
    assert "A function may be at work on it until 2027-01-15 08:00:15 UTC" in lines[2]


def test_a_launch_whose_function_has_ended_without_a_word_says_who_finds_out() -> None:
    instances = (LaunchedInstance(instance_id="i-0", state="pending"),)

    lines = told(launch(state="placing", undecided_until_s=NOW_S - 1, instances=instances))

    assert "by reconcile or by a retry with the same ClientToken" in lines[2]
    assert lines[3] == "  may run somewhere: i-0 (pending)"


def test_an_unknown_launch_says_what_its_caller_was_told() -> None:
    story = LaunchStory(
        ranked=(ranked(EAST),),
        asks=(ask(EAST, "no_answer"),),
        verdicts=(RegionVerdict(region=EAST, end="in_doubt", why="no answer within 1 s"),),
        error_code="InternalError",
        error_message="It is not known whether the launch happened.",
    )

    lines = told(launch(story, state="unknown", undecided_until_s=NOW_S - 1))

    assert "it is not known whether it happened" in lines[0]
    assert lines[2].startswith("The caller was told InternalError: ")
    assert "  left in doubt, something may be held here: no answer within 1 s" in lines


@pytest.mark.parametrize(
    ("state", "found"),
    [("placed", "its nodes have it"), ("refused", "no node has anything of it")],
)
def test_what_an_unknown_launch_became_is_told_beside_what_its_caller_was_told(
    state: str, found: str
) -> None:
    story = LaunchStory(error_code="InternalError", error_message="It is not known.")

    assert f"Found out since: {found}." in told(launch(story, state=state))


@pytest.mark.parametrize("state", ["placed", "refused"])
def test_a_resolved_launch_without_a_story_says_why_it_has_none(state: str) -> None:
    assert "There is no story" in told(launch(state=state))[2]


def test_an_instance_whose_record_has_gone_was_terminated_long_ago() -> None:
    instances = (LaunchedInstance(instance_id="i-0"),)

    assert "  terminated over an hour ago: i-0 (gone)" in told(
        launch(state="placed", region=EAST, instances=instances)
    )


# --- why in that order ---------------------------------------------------------------------


def test_the_lower_score_comes_first() -> None:
    assert reasons(ranked(EAST, 0.2), ranked(WEST, 0.4), ranked(LAB, 0.4)) == [
        "tried first: the lowest score",
        "tried after us-east-1: a higher score, which is worse",
        "tried after eu-west-1: as good",
    ]


def test_regions_that_are_about_as_good_are_spread_over() -> None:
    assert reasons(ranked(EAST, 0.22), ranked(WEST, 0.21), ranked(LAB, 0.5)) == [
        "tried first: about as good as eu-west-1, launches are spread over such regions",
        "tried after us-east-1: about as good, launches are spread over such regions",
        "tried after eu-west-1: a higher score, which is worse",
    ]


def test_stale_and_absent_scores_come_behind() -> None:
    stale = ranked(WEST, 0.1, freshness="stale")

    assert reasons(ranked(EAST, 0.9), stale, ranked(LAB, None))[1:] == [
        "tried after us-east-1: a stale score",
        "tried after eu-west-1: no score",
    ]
    assert (
        reasons(stale, ranked(LAB, None))[0] == "tried first: the lowest score, though an old one"
    )


def test_signals_that_were_not_read_put_a_region_behind() -> None:
    assert reasons(ranked(EAST, 0.9), ranked(WEST, 0.1, missing_scored_signals=1))[1] == (
        "tried after us-east-1: other load signals were not read"
    )


def test_the_default_region_leads_when_nothing_is_known() -> None:
    leads = "the default region leads when no region's load is known"
    blind = {"missing_scored_signals": 2}

    assert reasons(ranked(WEST, None), ranked(EAST, None)) == [
        f"tried first: {leads}",
        "tried after eu-west-1: no score either",
    ]
    assert reasons(ranked(WEST, 0.9, **blind), ranked(EAST, 0.1, **blind)) == [
        f"tried first: {leads}",
        f"tried after eu-west-1: {leads}",
    ]


def test_a_region_without_room_lately_is_asked_last_and_says_so() -> None:
    assert reasons(ranked(WEST, 0.9), ranked(EAST, 0.1), asked_last=(EAST,)) == [
        "tried first: the best of those that did not lack room lately",
        "asked last: some seconds before, nobody here had room for this type",
    ]


def test_when_all_lacked_room_lately_they_are_in_their_usual_order() -> None:
    assert reasons(ranked(EAST, 0.1), ranked(WEST, 0.9), asked_last=(EAST, WEST)) == [
        "tried first: the lowest score",
        "tried after us-east-1: a higher score, which is worse",
    ]


def test_a_pinned_launch_says_that_it_could_go_nowhere_else() -> None:
    story = LaunchStory(ranked=(ranked(EAST),))

    lines = told(launch(story, pinned=True))

    assert "Wanted: 1 x t3.medium, in one place only." in lines
    assert "  tried alone: the caller asked for this place" in lines
    assert "  tried alone: the only region" in told(launch(story))
