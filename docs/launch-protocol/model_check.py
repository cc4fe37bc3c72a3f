"""What must hold in every state of the launch protocol's model, and a visit to all of them."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from model import (
    NODES,
    UNDECIDED,
    Accepted,
    Ask,
    Commit,
    GiveUp,
    Message,
    Node,
    Record,
    Rules,
    State,
    current_ask,
    first_state,
    where,
)
from model_steps import compared, ends, steps

if TYPE_CHECKING:
    from collections.abc import Callable


class Explored(NamedTuple):
    """How many states there are, and how the nearest that breaks an invariant comes about."""

    states: int
    broken: str
    trace: tuple[str, ...]


def broken_invariant(rules: Rules, state: State) -> str:
    """Say which invariant a state breaks, or nothing."""
    if state.wrong:
        return state.wrong
    if len(state.acknowledged) > 1:
        return "I1, I5: two callers were told of different places"
    for place in next(iter(state.acknowledged), ()):
        entry = state.nodes[place.node].journal[place.instance]
        if entry is None or not entry.live:
            return "I1, I7: an acknowledged instance is gone"
    if state.record == "closed":
        return "I1, I7: the record of a live instance was closed"
    return _broken_when_quiet(rules, state.nodes, state.record)


def explore(
    rules: Rules, *, at_most: int, check: Callable[[Rules, State], str] = broken_invariant
) -> Explored:
    """Visit every state, nearest first, until check finds something in one.

    Raises OverflowError if there are more than at_most.
    """
    first = first_state(rules)
    came_from: dict[State, tuple[str, State] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        broken = check(rules, state)
        if broken:
            return Explored(len(came_from), broken, _trace(came_from, state))
        for words, untidy in steps(rules, state):
            after = _tidied(rules, untidy)
            if after not in came_from:
                came_from[after] = (words, state)
                waiting.append(after)
        if len(came_from) > at_most:
            raise OverflowError(f"more than {at_most} states")
    return Explored(len(came_from), "", ())


@cache
def _broken_when_quiet(rules: Rules, nodes: tuple[Node, ...], record: Record) -> str:
    """Say what is wrong when all functions die, nothing arrives, and then reconcile runs twice."""
    nodes = tuple(_lapsed(node.restarted()) for node in nodes)
    quiet = first_state(rules)._replace(nodes=nodes, record=record, over=True)
    if record in UNDECIDED:
        quiet = quiet.written(next(ends(rules, [node.journal for node in nodes])))
    for number in NODES * 2:
        quiet = compared(rules, quiet, number, quiet.nodes[number].journal)
        for order in quiet.in_flight:
            if isinstance(order, GiveUp):
                quiet = quiet.obeyed(order)
    for instance in range(rules.max_count):
        holders = {number for number in NODES if quiet.nodes[number].journal[instance]}
        if len(holders) > 1:
            return "I1: two nodes hold one instance, and reconcile leaves it so"
        if holders - {where(quiet.record, instance).node}:
            return "I4: something is left behind"
    return ""


def _lapsed(node: Node) -> Node:
    for instance, entry in enumerate(node.journal):
        if entry and not entry.live:
            node = node.gives_up(instance, entry.attempt)
    return node


def _tidied(rules: Rules, state: State) -> State:
    """Leave out what can have no effect any more, so that fewer states differ."""
    idle = {message for message in state.in_flight if _is_idle(rules, state, message)}
    resolvers = tuple(sorted(state.resolvers, key=hash))  # which is which makes no difference
    return state._replace(in_flight=state.in_flight - idle, resolvers=resolvers)


def _is_idle(rules: Rules, state: State, message: Message) -> bool:
    me = state.function
    match message:
        case Ask(attempt):
            return attempt <= state.expired and rules.node_refuses_expired
        case Accepted(to=Ask() as ask):
            return me.step != "wait" or ask != current_ask(rules, me)
        case Accepted(to=Commit(place)):
            return me.step != "commit" or place not in me.got
        case GiveUp(place):
            return place.attempt <= state.nodes[place.node].fences[place.instance]
    return False


def _trace(came_from: dict[State, tuple[str, State] | None], state: State) -> tuple[str, ...]:
    trace = []
    step = came_from[state]
    while step:
        trace.append(step[0])
        step = came_from[step[1]]
    return tuple(reversed(trace))
