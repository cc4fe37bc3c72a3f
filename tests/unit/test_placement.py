"""The walk over the regions: what each answer leads to, and never to anything else."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcast import messages
from fleetcast.errors import (
    FleetcastError,
    InsufficientInstanceCapacity,
    RefusedByNode,
    ServiceUnavailable,
)
from fleetcast.subjects import launch_subject
from lambdas.claims import Claims, Placed
from lambdas.run_instances.launch_request import HOLD_MS, Wanted
from lambdas.run_instances.placement import UnknownOutcome, Walk
from lambdas.run_instances.region_fill import Asking
from tests.scripted_regions import OUTCOMES, Accept, Fleet, Late, Lost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.scripted_regions import Answer

ACCEPT_S = 1.0
EPOCH_MS = 1_700_000_000_000
TYPE = "t3.medium"
LAUNCH = "r-00000001"


def instance_id(number: int) -> str:
    return f"i-{number:017x}"


def walk_over(
    fleet: Fleet,
    *,
    min_count: int = 1,
    max_count: int = 1,
    zone: str | None = None,
    launch: str = LAUNCH,
) -> Walk:
    wanted = Wanted(
        launch_id=launch,
        template=messages.LaunchRequest(
            account_id="123456789012",
            instances=(),
            instance_type=TYPE,
            image_id="ami-00000001",
        ),
        instances=tuple(
            messages.InstanceToLaunch(instance_id=instance_id(index), launch_index=index)
            for index in range(max_count)
        ),
        min_count=min_count,
        zone=zone,
        deadline_s=fleet.now_s + 20,
    )
    claims = Claims(
        fleet,
        launch,
        known_nodes=fleet.known_nodes,
        sleep=fleet.sleep,
        expires_at_ms=lambda: EPOCH_MS + int(fleet.now_s * 1000) + 1_000,
    )
    return Walk(
        wanted,
        Asking(
            bus=fleet,
            claims=claims,
            clock_s=lambda: fleet.now_s,
            now_ms=lambda: EPOCH_MS + int(fleet.now_s * 1000),
            sleep=fleet.sleep,
            accept_timeout_s=ACCEPT_S,
        ),
    )


def place(
    fleet: Fleet, *, min_count: int = 1, max_count: int = 1, zone: str | None = None
) -> list[Placed]:
    walk = walk_over(fleet, min_count=min_count, max_count=max_count, zone=zone)
    return asyncio.run(walk.place(list(fleet.scripts)))


def by_node(placed: Sequence[Placed]) -> dict[str, set[str]]:
    nodes: dict[str, set[str]] = defaultdict(set)
    for one in placed:
        nodes[one.node].add(one.instance_id)
    return nodes


# --- accepted ------------------------------------------------------------------------------


def test_an_acceptance_is_recorded_with_where_it_is() -> None:
    fleet = Fleet({"a": [Accept("n1", 1)]})
    assert place(fleet) == [
        Placed(instance_id=instance_id(0), region="a", zone=None, node="n1", attempt=1)
    ]
    assert fleet.subjects == [launch_subject("a", TYPE)]


def test_what_one_node_could_not_take_the_next_one_is_asked_for() -> None:
    fleet = Fleet({"a": [Accept("n1", 2), Accept("n2", 2)]})
    placed = place(fleet, max_count=3)
    assert by_node(placed) == fleet.holds()
    assert [len(ids) for ids in fleet.holds().values()] == [2, 1]


def test_room_for_max_count_gives_max_count() -> None:  # moto and MiniStack launch one
    assert len(place(Fleet({"a": [Accept("n1", 3)]}), min_count=1, max_count=3)) == 3


def test_fewer_than_max_count_are_enough_and_no_other_region_is_asked_for_the_rest() -> None:
    fleet = Fleet({"a": [Accept("n1", 2)], "b": [Accept("m1", 9)]})
    assert len(place(fleet, min_count=2, max_count=5)) == 2
    assert {region for region, _ in fleet.asked} == {"a"}


def test_fewer_than_min_count_are_given_up_and_the_next_region_gets_a_newer_attempt() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), Accept("n2", 1)], "b": [Accept("m1", 3)]})
    placed = place(fleet, min_count=3, max_count=3)
    assert {(one.region, one.node, one.attempt) for one in placed} == {("b", "m1", 2)}
    assert fleet.runs() == fleet.holds() == by_node(placed)


class FarFleet(Fleet):
    """Regions that are far away: requests are under way at the same time. at_once: how many."""

    at_once: list[int]
    _under_way_n = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_once = []

    async def ask(self, *what: Any, **how: Any) -> bytes:  # noqa: ANN401 - passed on
        self._under_way_n += 1
        await asyncio.sleep(0)
        self.at_once.append(self._under_way_n)
        try:
            return await super().ask(*what, **how)
        finally:
            self._under_way_n -= 1


def test_what_many_nodes_are_needed_for_is_asked_for_side_by_side() -> None:
    fleet = FarFleet({"a": [Accept(f"n{number}", 2) for number in range(30)]})
    placed = place(fleet, max_count=60)
    assert by_node(placed) == fleet.holds()
    assert len(placed) == 60
    assert fleet.at_once[0] == 1, "how much a node takes is not known yet"
    assert max(fleet.at_once) == 8
    assert len(fleet.asked) == 30, "no request more than one by one"


def test_what_a_few_more_nodes_may_take_is_asked_for_at_once() -> None:
    fleet = FarFleet({"a": [Accept("n1", 20), Accept("n2", 40)]})
    assert len(place(fleet, max_count=60)) == 60
    assert fleet.at_once == [1, 1]


@pytest.mark.parametrize("min_count", [1, 20])
def test_what_one_of_several_requests_has_become_is_found_out_before_all_else(
    min_count: int,
) -> None:
    answers: list[Answer] = [Accept("n0", 2), Accept("n1", 2), Lost("n2", 2), "no_responders"]
    answers += ["no_answer", "unreachable", "node_fault", Accept("n3", 2), "full"]
    answers += [Accept("n4", 20)] * 9
    fleet = FarFleet({"a": answers})
    placed = place(fleet, min_count=min_count, max_count=20)
    assert by_node(placed) == fleet.holds()
    assert [len(by_node(placed)[node]) for node in ("n0", "n1", "n2", "n3")] == [2] * 4


# --- held and committed --------------------------------------------------------------------


def test_nothing_boots_before_min_count_is_reached() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), Accept("n2", 1), "no_responders"] * 3})
    with pytest.raises(InsufficientInstanceCapacity, match="a: room for 2 only"):
        place(fleet, min_count=3, max_count=3)
    assert fleet.started_n == 0
    assert not fleet.holds()


def test_a_launch_that_found_too_few_makes_way_and_looks_once_more() -> None:
    fleet = Fleet({"a": [Accept("n1", 2), "no_responders", Accept("n1", 2), Accept("n2", 1)]})
    placed = place(fleet, min_count=3, max_count=3)
    assert {node: len(ids) for node, ids in by_node(placed).items()} == {"n1": 2, "n2": 1}
    assert fleet.runs() == fleet.holds() == by_node(placed)


def test_another_region_is_tried_before_one_is_tried_again() -> None:
    fleet = Fleet({"a": [Accept("n1", 2)], "b": [Accept("m1", 3)]})
    began_s = fleet.now_s
    assert {one.region for one in place(fleet, min_count=3, max_count=3)} == {"b"}
    assert fleet.now_s - began_s < 0.05


def test_a_region_without_any_room_is_not_tried_again() -> None:
    fleet = Fleet({"a": []})
    with pytest.raises(InsufficientInstanceCapacity):
        place(fleet, min_count=2, max_count=2)
    assert len(fleet.asked) == 1


def test_launches_that_make_way_for_each_other_do_so_at_different_times() -> None:
    def looked_again_at_s(launch: str) -> float:
        fleet = Fleet({"a": [Accept("n1", 2), "no_responders", Accept("n1", 3)]})
        asyncio.run(walk_over(fleet, min_count=3, max_count=3, launch=launch).place(["a"]))
        return round(fleet.now_s, 2)

    assert len({looked_again_at_s(f"r-{number:08x}") for number in range(10)}) > 5


def test_a_launch_of_one_boots_at_once() -> None:
    fleet = Fleet({"a": [Accept("n1", 1)]})
    placed = place(fleet)
    assert fleet.runs() == by_node(placed)
    assert len(fleet.subjects) == 1, "one round trip"


def test_what_is_held_on_several_nodes_boots_when_it_is_enough() -> None:
    fleet = Fleet({"a": [Accept("n1", 2), Accept("n2", 2)]})
    placed = place(fleet, min_count=3, max_count=4)
    assert fleet.runs() == by_node(placed)
    assert len(placed) == 4


def test_what_has_lapsed_before_its_commit_does_not_count() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), Accept("n2", 2)]}, lapsing=frozenset({"n1"}))
    placed = place(fleet, min_count=2, max_count=3)
    assert by_node(placed).keys() == {"n2"}
    assert fleet.runs() == by_node(placed)


def test_a_commit_that_leaves_too_few_gives_up_what_has_booted_and_goes_on() -> None:
    fleet = Fleet(
        {"a": [Accept("n1", 1), Accept("n2", 2)], "b": [Accept("m1", 3)]},
        lapsing=frozenset({"n1"}),
    )
    placed = place(fleet, min_count=3, max_count=3)
    assert {one.region for one in placed} == {"b"}
    assert fleet.runs() == by_node(placed)


def test_a_node_that_does_not_answer_a_commit_is_done_without_if_the_rest_is_enough() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), Accept("n2", 2)]}, deaf=frozenset({"n1"}))
    placed = place(fleet, min_count=2, max_count=3)
    assert by_node(placed).keys() == {"n2"}


def test_too_few_after_a_commit_without_an_answer_leave_the_outcome_unknown() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), Accept("n2", 1)]}, deaf=frozenset({"n1"}))
    with pytest.raises(UnknownOutcome, match="node n1 has not confirmed giving up"):
        place(fleet, min_count=2, max_count=2)
    assert fleet.runs() == {}, "n1 has not heard of a commit, and its hold lapses"


def test_the_lease_leaves_time_to_commit() -> None:
    fleet = Fleet({"a": [Accept("n1", 2), *["full"] * 100_000]})
    place(fleet, min_count=2, max_count=3)
    assert fleet.now_s - 100 < HOLD_MS / 1000 - 4


# --- rejected ------------------------------------------------------------------------------


def test_a_node_that_lost_a_race_makes_the_same_subject_be_asked_again() -> None:
    fleet = Fleet({"a": ["full", "full", Accept("n1", 1)], "b": [Accept("m1", 1)]})
    assert place(fleet)[0].region == "a"
    assert fleet.subjects == [launch_subject("a", TYPE)] * 3


def test_a_region_that_is_always_full_is_asked_until_the_deadline_and_not_called_dry() -> None:
    fleet = Fleet({"a": iter(lambda: "full", "")})
    with pytest.raises(ServiceUnavailable, match="a: the time for this launch ran out"):
        place(fleet)
    assert fleet.now_s <= 120


def test_every_ask_leaves_time_to_find_out_what_became_of_it() -> None:
    fleet = Fleet({"a": itertools.chain(["full"] * 14_900, iter(lambda: "no_answer", ""))})
    with pytest.raises((ServiceUnavailable, UnknownOutcome)):
        place(fleet)
    assert 115 < fleet.now_s <= 120


def test_a_fault_of_the_request_stops_the_walk_with_the_nodes_own_code() -> None:
    fleet = Fleet({"a": ["client_fault"], "b": [Accept("m1", 1)]})
    with pytest.raises(RefusedByNode, match="so it is") as refusal:
        place(fleet)
    assert refusal.value.code == "InvalidAMIID.NotFound"
    assert len(fleet.asked) == 1


def test_a_fault_of_the_request_gives_up_what_another_node_has_accepted() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), "client_fault"]})
    with pytest.raises(RefusedByNode):
        place(fleet, max_count=2)
    assert not fleet.holds()


def test_a_fault_of_the_request_takes_no_doubt_away() -> None:
    fleet = Fleet({"a": [Lost("n1", 1)], "b": ["client_fault"]}, mute=frozenset("a"))
    with pytest.raises(UnknownOutcome, match="a: no answer; b: so it is"):
        place(fleet)


def test_a_node_that_fails_is_not_the_regions_last_word() -> None:
    fleet = Fleet({"a": ["node_fault", "node_fault", Accept("n1", 1)]})
    assert place(fleet)[0].region == "a"


def test_a_region_whose_nodes_keep_failing_is_left_for_the_next() -> None:
    fleet = Fleet({"a": iter(lambda: "node_fault", ""), "b": [Accept("m1", 1)]})
    assert place(fleet)[0].region == "b"


def test_failing_nodes_are_a_failure_and_no_lack_of_capacity() -> None:
    fleet = Fleet({"a": iter(lambda: "node_fault", ""), "b": []})
    with pytest.raises(ServiceUnavailable, match="a: its nodes fail: so it is"):
        place(fleet)


# --- nobody, nobody reached, nothing known -------------------------------------------------


def test_a_region_where_nobody_has_room_leads_to_the_next() -> None:
    fleet = Fleet({"a": [], "b": [Accept("m1", 1)]})
    assert place(fleet)[0].region == "b"


def test_nobody_anywhere_is_a_lack_of_capacity_that_names_the_regions_and_the_launch() -> None:
    said = rf"1 x t3\.medium now: a: no node has room; b: no node has room\. \(Launch {LAUNCH}\)"
    with pytest.raises(InsufficientInstanceCapacity, match=said):
        place(Fleet({"a": [], "b": []}))


def test_nodes_that_come_back_to_their_server_are_waited_for() -> None:
    fleet = Fleet(
        {"a": [*["no_responders"] * 3, Accept("n1", 1)], "b": [Accept("m1", 1)]},
        empty_until={"a": 100.7},
    )
    fleet.known_nodes = lambda region: frozenset({f"{region}1"})  # type: ignore[method-assign]
    assert place(fleet)[0].region == "a"


def test_a_region_whose_nodes_do_not_come_back_is_left_and_not_called_dry() -> None:
    fleet = Fleet({"a": [], "b": []}, empty_until={"a": 1_000.0})
    fleet.known_nodes = lambda region: frozenset({f"{region}1"})  # type: ignore[method-assign]
    with pytest.raises(ServiceUnavailable, match="a: none of its nodes is connected; b: no node"):
        place(fleet)


def test_a_region_that_does_not_say_whether_anybody_is_there_is_not_called_dry() -> None:
    fleet = Fleet({"a": []}, empty_until={"a": 0.0}, mute=frozenset("a"))
    with pytest.raises(ServiceUnavailable, match="a: none of its nodes is connected"):
        place(fleet)


def test_a_region_without_known_nodes_is_dry_when_nobody_listens() -> None:
    with pytest.raises(InsufficientInstanceCapacity):
        place(Fleet({"a": []}, empty_until={"a": 1_000.0}))


def test_a_region_that_was_not_reached_leads_to_the_next() -> None:
    fleet = Fleet({"a": ["unreachable"], "b": [Accept("m1", 1)]})
    assert place(fleet)[0].region == "b"


def test_a_region_that_was_not_reached_forbids_to_speak_of_capacity() -> None:
    with pytest.raises(ServiceUnavailable, match=r"a: can't connect.*; b: no node"):
        place(Fleet({"a": ["unreachable"], "b": []}))


# --- no answer -----------------------------------------------------------------------------


def test_what_was_accepted_without_an_answer_is_found_and_counts() -> None:
    fleet = Fleet({"a": [Lost("n1", 1)], "b": [Accept("m1", 1)]})
    placed = place(fleet)
    assert [(one.region, one.node, one.attempt) for one in placed] == [("a", "n1", 1)]
    assert fleet.runs() == by_node(placed)
    assert fleet.started_n == 1


def test_what_is_found_of_several_is_not_asked_for_again() -> None:
    fleet = Fleet({"a": [Lost("n1", 2), Accept("n2", 9)]})
    placed = place(fleet, min_count=3, max_count=3)
    assert {node: len(ids) for node, ids in by_node(placed).items()} == {"n1": 2, "n2": 1}
    assert fleet.runs() == by_node(placed)


def test_what_nobody_has_is_asked_for_again_in_the_same_region_under_the_next_attempt() -> None:
    fleet = Fleet({"a": [Accept("n1", 1), "no_answer", Accept("n2", 1)], "b": []})
    placed = place(fleet, max_count=2)
    assert [(one.region, one.node, one.attempt) for one in placed] == [
        ("a", "n1", 1),
        ("a", "n2", 2),
    ]


def test_a_request_that_arrives_after_its_caller_has_looked_for_it_launches_nothing() -> None:
    fleet = Fleet({"a": [Late("n1", 1), Accept("n2", 1)]})
    placed = place(fleet)
    assert by_node(placed).keys() == {"n2"}
    assert fleet.holds() == by_node(placed), "Late took it after LocateLaunch, before CancelLaunch"


def test_nothing_is_asked_again_before_the_request_has_expired_on_every_clock() -> None:
    fleet = Fleet({"a": [Late("n1", 1), Accept("n2", 1)]})
    place(fleet)
    first, second = fleet.headers
    assert second.sent_at_ms is not None
    assert second.sent_at_ms >= first.expires_at_ms + messages.CLOCK_SKEW_ALLOWANCE_MS


def test_a_region_that_cannot_be_heard_leads_to_the_next_under_the_next_attempt() -> None:
    fleet = Fleet({"a": [Lost("n1", 1)], "b": [Accept("m1", 1)]}, mute=frozenset("a"))
    assert [(one.region, one.attempt) for one in place(fleet)] == [("b", 2)]


def test_a_region_in_doubt_is_never_a_lack_of_capacity() -> None:
    fleet = Fleet({"a": [Lost("n1", 1)], "b": []}, mute=frozenset("a"))
    with pytest.raises(UnknownOutcome, match="a: no answer; b: no node has room"):
        place(fleet)


def test_what_is_only_held_leaves_no_doubt_for_it_lapses() -> None:
    fleet = Fleet({"a": [Lost("n1", 2)], "b": []}, mute=frozenset("a"))
    with pytest.raises(ServiceUnavailable, match="a: no answer"):
        place(fleet, min_count=2, max_count=2)
    assert fleet.started_n == 0


def test_a_region_that_never_answers_is_left_after_some_requests() -> None:
    fleet = Fleet({"a": [Accept("n0", 1), *["no_answer"] * 9], "b": [Accept("m1", 2)]})
    placed = place(fleet, min_count=2, max_count=2)
    assert {one.region for one in placed} == {"b"}
    assert sum(answer == "no_answer" for _, answer in fleet.asked) == 3


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "not JSON",
        '{"v":99,"outcome":"accepted"}',
        '{"v":1,"outcome":"accepted","node":"n1","zone":null,"instance_ids":[]}',
        '{"v":1,"outcome":"accepted","node":"n1","zone":null,"instance_ids":["i-0badbadb"]}',
        '{"v":1,"outcome":"accepted","node":"a.b","instance_ids":["i-00000000000000000"]}',
    ],
)
def test_a_reply_that_makes_no_sense_may_be_an_acceptance(reply: str) -> None:
    fleet = Fleet({"a": [reply], "b": []})
    with pytest.raises(UnknownOutcome):
        place(fleet)


def test_an_instance_accepted_twice_in_one_reply_is_no_acceptance_of_two() -> None:
    twice = messages.Accepted(node="n1", zone=None, instance_ids=(instance_id(0),) * 2)
    with pytest.raises(ServiceUnavailable):
        place(Fleet({"a": [messages.encode(twice).decode()]}), min_count=2, max_count=2)


# --- what is asked -------------------------------------------------------------------------


def test_a_launch_pinned_to_a_zone_asks_that_zones_nodes_only() -> None:
    fleet = Fleet({"a": ["full", Accept("n1", 1)]})
    place(fleet, zone="a-1")
    assert fleet.subjects == [launch_subject("a", TYPE, "a-1")] * 2


def test_a_request_carries_its_launch_its_attempt_and_when_it_expires() -> None:
    fleet = Fleet({"a": [Accept("n1", 1)]})
    place(fleet)
    assert fleet.headers == [
        messages.LaunchHeaders(
            launch_id=LAUNCH,
            attempt=1,
            sent_at_ms=EPOCH_MS + 100_001,
            expires_at_ms=EPOCH_MS + 101_001,
        )
    ]


def test_the_walk_tells_what_it_asked_and_what_came_of_it() -> None:
    fleet = Fleet({"a": ["full", "node_fault"], "b": ["unreachable"], "c": [Accept("l1", 1)]})
    walk = walk_over(fleet)
    asyncio.run(walk.place(["a", "b", "c"]))
    assert [(ask.region, ask.outcome, ask.node) for ask in walk.log.asks] == [
        ("a", "full", "n1"),
        ("a", "node_fault", "n1"),
        ("a", "no_responders", None),
        ("b", "unreachable", None),
        ("c", "accepted", "l1"),
    ]


# --- whatever happens ----------------------------------------------------------------------


def scripts() -> st.SearchStrategy[dict[str, list[Answer]]]:
    rooms = st.integers(1, 3)
    answers: st.SearchStrategy[Answer] = st.one_of(
        st.sampled_from([*OUTCOMES, "no_answer"]),
        st.builds(Accept, st.sampled_from(["n1", "n2"]), rooms),
        st.builds(Lost, st.just("n3"), rooms),
        st.builds(Late, st.just("n3"), rooms),
    )
    return st.dictionaries(st.sampled_from("abc"), st.lists(answers, max_size=9), min_size=1)


def in_their_regions(script: Mapping[str, Sequence[Answer]]) -> dict[str, list[Answer]]:
    """Give each region nodes of its own."""

    def owned(region: str, answer: Answer) -> Answer:
        if isinstance(answer, str):
            return answer
        return type(answer)(node=f"{region}-{answer.node}", room=answer.room)

    return {
        region: [owned(region, answer) for answer in answers] for region, answers in script.items()
    }


NODES = st.sampled_from(["a-n1", "a-n3", "b-n2", "b-n3", "c-n1"])


@given(
    script=scripts(),
    counts=st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted),
    deaf=st.frozensets(NODES),
    mute=st.frozensets(st.sampled_from("ab")),
    lapsing=st.frozensets(NODES),
)
def test_whatever_is_answered_the_launch_ends_as_it_may(
    script: dict[str, list[Answer]],
    counts: list[int],
    deaf: frozenset[str],
    mute: frozenset[str],
    lapsing: frozenset[str],
) -> None:
    fleet = Fleet(in_their_regions(script), deaf=deaf, mute=mute, lapsing=lapsing)
    min_count, max_count = counts
    walk = walk_over(fleet, min_count=min_count, max_count=max_count)
    error: FleetcastError | None = None
    try:
        asyncio.run(walk.place(list(fleet.scripts)))
    except FleetcastError as raised:
        error = raised
    # What a node that can't be heard has, nobody can know; all others hold what was said.
    heard = {
        node: ids
        for node, ids in fleet.runs().items()
        if node not in deaf and not any(node.startswith(f"{region}-") for region in mute)
    }
    last_word = dict(fleet.asked)
    # Of several requests side by side, not only the last one's answer counts.
    troubles = {answer for _, answer in fleet.asked if not isinstance(answer, Accept)}
    troubles -= {"no_responders", "full"}
    match error:
        case None:
            assert min_count <= len(walk.placed) <= max_count
            assert len({one.region for one in walk.placed}) == 1
            assert len({one.instance_id for one in walk.placed}) == len(walk.placed)
            placed = by_node(walk.placed)
            assert {node: placed[node] for node in heard} == heard
        case InsufficientInstanceCapacity():  # invariant I3
            assert all(last_word[region] == "no_responders" for region in fleet.scripts)
            assert not fleet.runs()  # invariant I4
        case ServiceUnavailable() | RefusedByNode():
            assert not heard
            assert not any(verdict.end == "in_doubt" for verdict in walk.verdicts)
            assert lapsing or troubles
        case UnknownOutcome():
            assert deaf or mute or "no_answer" in troubles
        case _:
            raise AssertionError(f"no way for a launch to end: {error!r}")
    if error is not None and not (deaf or mute):
        assert not fleet.runs(), "nothing is left behind where all can be heard"
