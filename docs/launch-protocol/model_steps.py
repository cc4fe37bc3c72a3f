"""What may happen next in the launch protocol's model, by its rules."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from model import (
    FOR_EVER,
    NODES,
    UNDECIDED,
    Accepted,
    Ask,
    Commit,
    Entry,
    Function,
    GiveUp,
    Journal,
    Message,
    Place,
    Record,
    Resolver,
    Rules,
    State,
    Write,
    current_ask,
    named,
    replaced,
    where,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Step = tuple[str, State]


def steps(rules: Rules, state: State) -> Iterator[Step]:
    """Yield all that may happen next, in words, and what comes of it."""
    yield from _function_steps(rules, state)
    for message in state.in_flight:
        yield from _deliver(rules, state, message)
    yield from _node_steps(state)
    yield from _time_steps(rules, state)
    yield from _resolver_steps(rules, state)
    yield from _reconcile_steps(rules, state)


# --- the function --------------------------------------------------------------------------


def _function_steps(rules: Rules, state: State) -> Iterator[Step]:
    me = state.function
    match me.step:
        case "begin" if rules.writes_before_asking:
            begun = state._replace(record="placing", function=me._replace(step="ask"))
            yield "function writes the launch", begun
        case "begin":
            yield "function doesn't write yet", state.at_step("ask")
        case "ask":
            asked = state.at_step("wait").sent(current_ask(rules, me))
            yield f"function asks under attempt {me.attempt}", asked
            yield from _stop(rules, state, "nobody has room")
        case "wait":
            yield from _wait(rules, state)
        case "locate 0" | "locate 1":
            yield from _locate(rules, state, int(me.step[-1]))
        case "pause" if state.expired >= me.attempt or not rules.waits_for_expiry:
            left = me._replace(left=me.attempt, doubt=me.doubt or not me.heard)
            yield from _next_attempt(rules, state._replace(function=left), "waited")
            yield from _stop(rules, state._replace(function=left), "time ran out")
        case "commit":
            answers = {one.to for one in state.in_flight if isinstance(one, Accepted)}
            booted = frozenset(one for one in me.got if Commit(one) in answers)
            if len(booted) >= rules.min_count:
                yield _end(rules, state, booted, "enough has booted")
            yield from _give_up(rules, state, "not enough has booted")
    if me.step != "begin" and state.record == "none":
        yield "function writes the launch", state._replace(record="placing")


def _wait(rules: Rules, state: State) -> Iterator[Step]:
    me = state.function
    for answer in state.in_flight:
        if isinstance(answer, Accepted) and answer.to == current_ask(rules, me):
            got = me._replace(got=me.got | answer.places, step="ask")
            more = state._replace(function=got)
            if current_ask(rules, got).instances:
                yield "function has an answer", more
            else:
                yield _complete(rules, more, "function has an answer")
    yield "function has no answer", state.at_step("locate 0")


def _locate(rules: Rules, state: State, node: int) -> Iterator[Step]:
    me = state.function
    wanted = current_ask(rules, me).instances
    held = frozenset(
        Place(instance, node, entry.attempt)
        for instance, entry in enumerate(state.nodes[node].journal)
        if entry and (entry.attempt == me.attempt or not rules.finds_under_its_attempt_only)
    )
    found = frozenset(place for place in held if place.instance in wanted)
    spare = (GiveUp(place, decided=False) for place in held - found - me.got)
    hears = state._replace(function=me._replace(heard=True, got=me.got | found)).sent(*spare)
    for words, after in ((f"node {node} is located", hears), (f"node {node} is silent", state)):
        missing = current_ask(rules, after.function).instances
        if node != NODES[-1]:
            yield words, after.at_step("locate 1")
        elif not missing:
            yield _complete(rules, after, words)
        else:
            cancelled = [Place(one, each, me.attempt) for one, each in product(missing, NODES)]
            cancels = (GiveUp(place, decided=False) for place in cancelled)
            yield f"{words}; function cancels", after.at_step("pause").sent(*cancels)


def _complete(rules: Rules, state: State, words: str) -> Step:
    """Let boot what the function has got: it is enough."""
    me = state.function
    if rules.min_count == 1:  # it boots since it was accepted
        return _end(rules, state, me.got, words)
    commits = me._replace(step="commit", committed=me.committed | me.got)
    sent = state._replace(function=commits).sent(*map(Commit, me.got))
    return f"{words}; function commits", sent


def _stop(rules: Rules, state: State, words: str) -> Iterator[Step]:
    """Ask no more in this region."""
    if len(state.function.got) >= rules.min_count:
        yield _complete(rules, state, words)
    else:
        yield from _give_up(rules, state, words)


def _give_up(rules: Rules, state: State, words: str) -> Iterator[Step]:
    """Release what the function has got, and try another region or end."""
    me = state.function
    releases = (GiveUp(place, decided=False) for place in me.got)
    released = state._replace(function=me._replace(got=frozenset())).sent(*releases)
    yield from _next_attempt(rules, released, words)
    yield _end(rules, released, "unknown" if me.doubt else "refused", words)


def _next_attempt(rules: Rules, state: State, words: str) -> Iterator[Step]:
    me = state.function
    if me.attempt < rules.attempts:
        asks = me._replace(step="ask", attempt=me.attempt + 1, heard=False)
        yield f"{words}; function goes on", state._replace(function=asks)


def _end(rules: Rules, state: State, record: Record, words: str) -> Step:
    me = state.function
    ends = Function("write", me.attempt, left=me.left, committed=me.committed)
    state = state._replace(function=ends).sent(Write(record))
    if not rules.writes_before_answering:
        state = state.told(record)
    return f"{words}; function writes that it is {named(record)}", state


# --- messages arrive -----------------------------------------------------------------------


def _deliver(rules: Rules, state: State, message: Message) -> Iterator[Step]:
    match message:
        case Ask():
            for node in NODES:
                yield from _take(rules, state, node, message)
        case Commit(place):
            yield from _boot(rules, state, place)
        case GiveUp(place):
            yield f"node {place.node} gives up {named(place)}", state.obeyed(message)
        case Write(record) if state.record == "placing" or not rules.writes_if_undecided:
            yield f"the table has {named(record)}", state.written(record)


def _take(rules: Rules, state: State, number: int, ask: Ask) -> Iterator[Step]:
    if ask.attempt <= state.expired and rules.node_refuses_expired:
        return
    node = state.nodes[number]
    taken = set()
    for instance in sorted(ask.instances):
        entry = node.journal[instance]
        full = len(node.journal) - node.journal.count(None) >= rules.slots[number]
        fenced = ask.attempt <= node.fences[instance]
        if entry and entry.attempt <= ask.attempt:
            entry = entry._replace(attempt=ask.attempt)
        elif entry or full or (fenced and rules.node_fences):
            continue
        else:
            if fenced or ask.attempt <= max(state.expired, state.function.left):
                state = state._replace(wrong="I6: launched what has expired or was cancelled")
            live = rules.min_count == 1
            entry = Entry(ask.attempt, live, rules.node_journals_before_answering)
        node = node._replace(journal=replaced(node.journal, instance, entry))
        taken.add(Place(instance, number, ask.attempt))
    if taken:
        kept = state.in_flight if rules.duplicates else state.in_flight - {ask}
        took = state._replace(in_flight=kept).with_node(number, node)
        words = f"node {number} takes {', '.join(map(named, sorted(taken)))}"
        yield words, took.sent(Accepted(ask, frozenset(taken)))


def _boot(rules: Rules, state: State, place: Place) -> Iterator[Step]:
    node = state.nodes[place.node]
    entry = node.journal[place.instance]
    if entry is None:
        return
    held = place._replace(attempt=entry.attempt)
    if held != place and rules.node_commits_under_the_attempt_only:
        return
    if not entry.live and held not in state.function.committed:
        state = state._replace(wrong="I4: booted what nobody has committed")
    journal = replaced(node.journal, place.instance, entry._replace(live=True))
    booted = state.with_node(place.node, node._replace(journal=journal))
    answer = Accepted(Commit(place), frozenset({held}))
    yield f"node {place.node} boots {named(held)}", booted.sent(answer)


# --- nodes and time ------------------------------------------------------------------------


def _node_steps(state: State) -> Iterator[Step]:
    for number, node in enumerate(state.nodes):
        for instance, entry in enumerate(node.journal):
            if entry and not entry.live:
                lapsed = node.gives_up(instance, entry.attempt)
                yield f"a hold lapses on node {number}", state.with_node(number, lapsed)
            if entry and not entry.journaled:
                journal = replaced(node.journal, instance, entry._replace(journaled=True))
                later = state.with_node(number, node._replace(journal=journal))
                yield f"node {number} journals", later
        if node.restarted() != node:
            yield f"node {number} dies and restarts", state.with_node(number, node.restarted())


def _time_steps(rules: Rules, state: State) -> Iterator[Step]:
    me = state.function
    if any(isinstance(one, Ask) and one.attempt == state.expired + 1 for one in state.in_flight):
        yield f"attempt {state.expired + 1} expires", state._replace(expired=state.expired + 1)
    if not state.over and me.step != "begin":
        late = frozenset(one for one in state.in_flight if _may_be_late(rules, one))
        dead = Function("over", me.attempt, left=me.left, committed=me.committed)
        over = state._replace(over=True, expired=me.attempt, function=dead, in_flight=late)
        yield "function is over", over


def _may_be_late(rules: Rules, message: Message) -> bool:
    """Say whether a message may have an effect when the function is over."""
    match message:
        case Write() | GiveUp(decided=True):
            return True
        case GiveUp() | Commit():
            return not rules.orders_expire
        case Ask():
            return not rules.node_refuses_expired
    return False


# --- those that come after -----------------------------------------------------------------


def _resolver_steps(rules: Rules, state: State) -> Iterator[Step]:
    if not state.over and rules.resolver_waits_until_over:
        return
    for which, me in enumerate(state.resolvers):
        if me.end is not None:
            yield _resolve(rules, state, which, me.end)
            continue
        for node in NODES:
            if me.heard[node] is None and state.record in UNDECIDED:
                hears = me._replace(heard=replaced(me.heard, node, state.nodes[node].journal))
                yield f"resolver hears node {node}", state.with_resolver(which, hears)
        if all(me.heard) or (any(me.heard) and not rules.resolver_hears_all):
            for end in ends(rules, me.heard):
                if rules.resolver_writes_before_giving_up:
                    yield _resolve(rules, state, which, end)
                else:
                    will = state.with_resolver(which, me._replace(end=end))
                    yield f"resolver gives up what isn't {named(end)}", _order(rules, will, end)


def ends(rules: Rules, heard: Iterable[Journal | None]) -> Iterator[Record]:
    """Yield what a resolver may write: one place for each instance that is live, or a refusal."""
    holders: dict[int, list[Place]] = {}
    for node, journal in enumerate(heard):
        for instance, entry in enumerate(journal or ()):
            if entry and (entry.live or not rules.resolver_counts_no_holds):
                holders.setdefault(instance, []).append(Place(instance, node, entry.attempt))
    if len(holders) >= rules.min_count:
        yield from map(frozenset, product(*holders.values()))
    else:
        yield "refused"


def _resolve(rules: Rules, state: State, which: int, end: Record) -> Step:
    after = state.with_resolver(which, Resolver())
    if state.record in UNDECIDED or not rules.writes_if_undecided:
        after = after.written(end)
        if rules.resolver_writes_before_giving_up:
            after = _order(rules, after, end)
    return f"resolver writes that it is {named(end)}", after


def _order(rules: Rules, state: State, end: Record) -> State:
    """Order each node to give up for ever what doesn't belong to it."""
    strays = (
        Place(instance, node, FOR_EVER)
        for instance, node in product(range(rules.max_count), NODES)
        if where(end, instance).node != node
    )
    return state.sent(*(GiveUp(place, decided=True) for place in strays))


def _reconcile_steps(rules: Rules, state: State) -> Iterator[Step]:
    if rules.reconcile_reads_records_first:
        # An end that is written stays: to compare now is to have read it some time before.
        for node in NODES:
            after = compared(rules, state, node, state.nodes[node].journal)
            yield f"reconcile compares node {node}", after
    elif state.inventory:
        after = compared(rules, state._replace(inventory=None), *state.inventory)
        yield "reconcile reads the records", after
    else:
        for node in NODES:
            after = state._replace(inventory=(node, state.nodes[node].journal))
            yield f"reconcile has the inventory of node {node}", after


def compared(rules: Rules, state: State, node: int, journal: Journal) -> State:
    """Return the state after reconcile has compared a node's inventory with the record."""
    if state.record in UNDECIDED and rules.reconcile_spares_the_undecided:
        return state
    for instance, entry in enumerate(journal):
        place = where(state.record, instance)
        if entry is None:
            if place.node == node:
                state = state._replace(record="closed")
            continue
        stray = (
            place.node != node if rules.reconcile_goes_by_node else entry.attempt < place.attempt
        )
        if stray and rules.reconcile_clears_up:
            state = state.sent(GiveUp(Place(instance, node, entry.attempt), decided=True))
    return state
