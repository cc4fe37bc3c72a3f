"""The launch protocol, small enough to visit every state that it can get into.

One launch, two nodes, the function that places it, and those that may come after it to resolve it:
the caller with the same ClientToken, and reconcile. README.md says it in words; each rule of it can
be broken here, to see what it is there for. model_steps.py says what may happen next,
model_check.py what must hold. Standard library only.

How the world's evils appear:

- A message stays in flight when it is delivered: it may come again, later, after others, or never.
- A function dies by taking no further step. Once `over`, it is dead for sure.
- A node journals and answers in one step. To die before it is to lose the request; after it, to
  lose the answer. What else dies with a node is what it hasn't journaled: nothing, by the rules.
- There is no clock: a request expires, and a hold lapses, at any moment or never. But the function
  may wait until a request has expired, and all have once it is over. A node that is quicker to call
  a request expired might as well not have got it.
- The nodes are of one region or of two: each may get any request, and be silent to any question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar

T = TypeVar("T")
NODES: Final = (0, 1)
NOWHERE: Final = -1
FOR_EVER: Final = 99  # an attempt above all others


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is launched, and by which rules; False breaks one.

    max_count, min_count: EC2's. slots: of each node. attempts, resolvers: how many there may be.
    duplicates: a launch request may be delivered again, also to another node.
    """

    max_count: int = 1
    min_count: int = 1
    slots: tuple[int, int] = (1, 1)
    attempts: int = 2
    resolvers: int = 2
    duplicates: bool = True

    writes_before_asking: bool = True
    writes_before_answering: bool = True
    writes_if_undecided: bool = True
    waits_for_expiry: bool = True
    finds_under_its_attempt_only: bool = True
    orders_expire: bool = True
    node_refuses_expired: bool = True
    node_fences: bool = True
    node_journals_before_answering: bool = True
    node_commits_under_the_attempt_only: bool = True
    resolver_waits_until_over: bool = True
    resolver_hears_all: bool = True
    resolver_counts_no_holds: bool = True
    resolver_writes_before_giving_up: bool = True
    reconcile_clears_up: bool = True
    reconcile_spares_the_undecided: bool = True
    reconcile_goes_by_node: bool = True
    reconcile_reads_records_first: bool = True


class Place(NamedTuple):
    """An instance on a node, under an attempt."""

    instance: int
    node: int
    attempt: int


Placement = frozenset[Place]
Record = Placement | Literal["none", "placing", "unknown", "refused", "closed"]
UNDECIDED: Final = ("placing", "unknown")


class Entry(NamedTuple):
    """An instance in a node's journal. live: it boots or runs; else it is held."""

    attempt: int
    live: bool
    journaled: bool = True


Journal = tuple[Entry | None, ...]  # by instance


class Node(NamedTuple):
    """A node: what it holds, and up to which attempts it never takes an instance again."""

    journal: Journal
    fences: tuple[int, ...]

    def gives_up(self, instance: int, attempt: int) -> Node:
        """Return the node without what it holds under this attempt or an older one, fenced."""
        entry = self.journal[instance]
        kept = entry if entry and entry.attempt > attempt else None
        fence = max(attempt, self.fences[instance])
        return Node(replaced(self.journal, instance, kept), replaced(self.fences, instance, fence))

    def restarted(self) -> Node:
        """Return the node with what it has journaled."""
        kept = tuple(entry if entry and entry.journaled else None for entry in self.journal)
        return self._replace(journal=kept)


class Ask(NamedTuple):
    """A launch request."""

    attempt: int
    instances: frozenset[int]


class Commit(NamedTuple):
    """Boot what is held there under this attempt."""

    place: Place


class Accepted(NamedTuple):
    """The answer to both."""

    to: Ask | Commit
    places: Placement


class GiveUp(NamedTuple):
    """Release or CancelLaunch. decided: sent after the launch's end was written down."""

    place: Place
    decided: bool


class Write(NamedTuple):
    """The function's last write, on its way to the table."""

    record: Record


Message = Ask | Commit | Accepted | GiveUp | Write


class Function(NamedTuple):
    """The function that places the launch.

    got: what it counts on. heard: somebody has answered its LocateLaunch. doubt: once nobody did.
    left: the last attempt that it went on from without an answer. committed: what it let boot.
    """

    step: str = "begin"
    attempt: int = 1
    got: Placement = frozenset()
    heard: bool = False
    doubt: bool = False
    left: int = 0
    committed: Placement = frozenset()


class Resolver(NamedTuple):
    """One that resolves: what it has heard of each node, and what it will write."""

    heard: tuple[Journal | None, ...] = (None, None)
    end: Record | None = None


class State(NamedTuple):
    """Everything. inventory: what reconcile has of a node.

    acknowledged: what callers may have been told. wrong: the invariant that a step has just broken.
    """

    nodes: tuple[Node, ...]
    resolvers: tuple[Resolver, ...]
    function: Function = Function()
    inventory: tuple[int, Journal] | None = None
    record: Record = "none"
    in_flight: frozenset[Message] = frozenset()
    expired: int = 0
    over: bool = False
    acknowledged: frozenset[Placement] = frozenset()
    wrong: str = ""

    def sent(self, *messages: Message) -> State:
        """Return the state with these messages in flight."""
        return self._replace(in_flight=self.in_flight.union(messages))

    def written(self, record: Record) -> State:
        """Return the state after a write. What is written as placed is what callers are told."""
        return self._replace(record=record).told(record)

    def told(self, record: Record) -> State:
        """Return the state in which a caller may have been told of a placement."""
        placements = {record} if isinstance(record, frozenset) else set()
        return self._replace(acknowledged=self.acknowledged | placements)

    def obeyed(self, order: GiveUp) -> State:
        """Return the state after a node has given up what it was ordered to."""
        instance, number, attempt = order.place
        return self.with_node(number, self.nodes[number].gives_up(instance, attempt))

    def with_node(self, number: int, node: Node) -> State:
        """Return the state with this node."""
        return self._replace(nodes=replaced(self.nodes, number, node))

    def with_resolver(self, number: int, resolver: Resolver) -> State:
        """Return the state with this resolver."""
        return self._replace(resolvers=replaced(self.resolvers, number, resolver))

    def at_step(self, step: str) -> State:
        """Return the state with the function at this step."""
        return self._replace(function=self.function._replace(step=step))


def first_state(rules: Rules) -> State:
    """Return the state before the launch."""
    node = Node((None,) * rules.max_count, (0,) * rules.max_count)
    return State((node,) * len(NODES), (Resolver(),) * rules.resolvers)


def current_ask(rules: Rules, function: Function) -> Ask:
    """Return the request for what is still to place."""
    placed = {place.instance for place in function.got}
    return Ask(function.attempt, frozenset(range(rules.max_count)) - placed)


def where(record: Record, instance: int) -> Place:
    """Return where an instance belongs."""
    places = record if isinstance(record, frozenset) else ()
    nowhere = Place(instance, NOWHERE, FOR_EVER)
    return next((place for place in places if place.instance == instance), nowhere)


def replaced(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """Return the values with one of them replaced."""
    return (*values[:index], value, *values[index + 1 :])


def named(what: Place | Record) -> str:
    """Return words for the reader of a trace."""
    if isinstance(what, Place):
        return f"i{what.instance} on node {what.node} under attempt {what.attempt}"
    if isinstance(what, frozenset):
        return f"placed ({', '.join(map(named, sorted(what)))})"
    return what
