"""The launch protocol's model: every state keeps the invariants, and each rule is needed for it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import pytest

from model import Rules, State
from model_check import explore

if TYPE_CHECKING:
    from collections.abc import Callable

AT_MOST: Final = 150_000

ONE: Final = Rules()
ONE_SLOT: Final = Rules(slots=(1, 0))
PAIR: Final = Rules(max_count=2, min_count=2, attempts=1, resolvers=1)
PAIR_AGAIN: Final = dataclasses.replace(PAIR, attempts=2, resolvers=0, duplicates=False)
ONE_OR_TWO: Final = Rules(max_count=2, min_count=1, resolvers=1, duplicates=False)

# Which invariant goes with each rule, and where it takes more than one instance to see it.
NEEDED_BY: Final = {
    "writes_before_asking": (ONE, "I7"),
    "writes_before_answering": (ONE, "I5"),
    "writes_if_undecided": (ONE, "I5"),
    "waits_for_expiry": (ONE, "I6"),
    "finds_under_its_attempt_only": (ONE, "I7"),
    "orders_expire": (ONE, "I7"),
    "node_refuses_expired": (ONE, "I6"),
    "node_fences": (ONE, "I6"),
    "node_journals_before_answering": (ONE, "I7"),
    "node_commits_under_the_attempt_only": (PAIR_AGAIN, "I4"),
    "resolver_waits_until_over": (ONE, "I7"),
    "resolver_counts_no_holds": (PAIR, "I7"),
    "resolver_writes_before_giving_up": (ONE, "I7"),
    "reconcile_clears_up": (ONE_SLOT, "I4"),
    "reconcile_spares_the_undecided": (ONE, "I7"),
    "reconcile_goes_by_node": (ONE, "I1"),
    "reconcile_reads_records_first": (ONE, "I7"),
}
# A region that isn't heard whole costs a launch that could have been kept, and no invariant.
NEEDED_BY_NONE: Final = {"resolver_hears_all"}


def without(rules: Rules, rule: str) -> Rules:
    broken: dict[str, Any] = {rule: False}
    return dataclasses.replace(rules, **broken)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(ONE, id="one instance, two resolvers"),
        pytest.param(Rules(attempts=3, resolvers=1), id="one instance, three attempts"),
        pytest.param(ONE_SLOT, id="one instance, one slot in all"),
        pytest.param(PAIR, id="hold and commit, a resolver"),
        pytest.param(
            dataclasses.replace(PAIR_AGAIN, resolvers=1), id="hold and commit, two attempts"
        ),
        pytest.param(ONE_OR_TWO, id="one or two instances"),
        *(
            pytest.param(without(rules, rule), id=f"{name}, not {rule}")
            for rule in sorted(NEEDED_BY_NONE)
            for name, rules in (("one instance", ONE), ("hold and commit", PAIR))
        ),
    ],
)
def test_every_state_keeps_the_invariants(rules: Rules) -> None:
    explored = explore(rules, at_most=AT_MOST)
    print(f"{explored.states} states")  # noqa: T201 - pytest -s shows it
    assert explored.broken == "", explored.trace


@pytest.mark.parametrize("rule", NEEDED_BY)
def test_a_broken_rule_breaks_an_invariant(rule: str) -> None:
    rules, invariant = NEEDED_BY[rule]
    explored = explore(without(rules, rule), at_most=AT_MOST)
    print(explored.broken, *explored.trace, sep="\n  ")  # noqa: T201 - pytest -s shows it
    assert invariant in explored.broken


def test_every_rule_is_tried() -> None:
    switches = {field.name for field in dataclasses.fields(Rules) if field.default is True}
    assert switches - {"duplicates"} == NEEDED_BY.keys() | NEEDED_BY_NONE


def _one_on_two_nodes(state: State) -> bool:
    return all(node.journal[0] for node in state.nodes)


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda state: isinstance(state.record, frozenset), id="placed"),
        pytest.param(
            lambda state: isinstance(state.record, frozenset) and state.function.step == "over",
            id="placed, and the function over",
        ),
        pytest.param(lambda state: state.record == "refused", id="refused"),
        pytest.param(lambda state: state.record == "unknown", id="unknown"),
        pytest.param(_one_on_two_nodes, id="two VMs"),
        pytest.param(
            lambda state: state.record == "refused" and any(state.nodes[0].journal), id="a stray"
        ),
    ],
)
def test_the_model_gets_into_what_the_rules_are_for(happens: Callable[[State], bool]) -> None:
    explored = explore(
        ONE, at_most=AT_MOST, check=lambda _, state: "so it is" if happens(state) else ""
    )
    assert explored.broken == "so it is"
