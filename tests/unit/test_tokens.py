"""Tokens: what is armed when, for what the state machine can't see from outside."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetcast.agent.tokens import LINGER_S, SPARE_TOKENS, SURPLUS_FACTOR, CapacityTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SUBJECT = "ec2.RunInstances.r.t3.medium"


@dataclass
class _Armed:
    remaining: int


class _Node:
    """Tokens of one subject, and what they are made from. standing: what is not retired."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.in_hand: Counter[str] = Counter()
        self.standing: list[_Armed] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.passes_due = 0
        self.tokens = CapacityTokens(
            self,
            room_by_subject=lambda: {_SUBJECT: self.room},
            in_hand=lambda: self.in_hand,
            call_later=lambda after_s, what: self.timers.append((after_s, what)),
            changed=self._count_pass,
        )

    def _count_pass(self) -> None:
        self.passes_due += 1

    async def arm(self, _: str, limit: int) -> _Armed:
        self.standing.append(_Armed(limit))
        return self.standing[-1]

    async def retire(self, armed: Sequence[_Armed]) -> None:
        for one in armed:
            self.standing.remove(one)

    def limits(self) -> list[int]:
        return [one.remaining for one in self.standing]


async def test_what_is_replaced_stays_for_a_while() -> None:
    node = _Node(room=4)
    await node.tokens.adjust()
    node.room = 5
    await node.tokens.adjust()
    assert node.limits() == [4 + SPARE_TOKENS, 5 + SPARE_TOKENS]
    await node.tokens.adjust()
    assert len(node.standing) == 2
    ((after_s, end),) = node.timers
    assert after_s == LINGER_S
    end()
    assert node.passes_due == 1
    await node.tokens.adjust()
    assert node.limits() == [5 + SPARE_TOKENS]


async def test_a_full_node_leaves_at_once_with_all_that_stands() -> None:
    node = _Node(room=4)
    await node.tokens.adjust()
    node.room = 5
    await node.tokens.adjust()
    node.room = 0
    await node.tokens.adjust()
    assert node.limits() == []
    for _, end in node.timers:
        end()
    await node.tokens.adjust()
    assert node.passes_due == 0


async def test_requests_in_hand_are_not_armed_for_again() -> None:
    node = _Node(room=4)
    await node.tokens.adjust()
    node.standing[0].remaining -= 3
    node.in_hand[_SUBJECT] = 3  # they may take the room for which their tokens stood
    await node.tokens.adjust()
    assert node.limits() == [1 + SPARE_TOKENS]
    node.in_hand.clear()  # but they have taken none
    await node.tokens.adjust()
    assert node.limits() == [1 + SPARE_TOKENS, 4 + SPARE_TOKENS]


async def test_many_more_tokens_than_room_are_given_back() -> None:
    node = _Node(room=100)
    await node.tokens.adjust()
    limit = 100 + SPARE_TOKENS
    node.room = -(-limit // SURPLUS_FACTOR) - SPARE_TOKENS
    await node.tokens.adjust()
    assert node.limits() == [limit]
    node.room -= 1
    await node.tokens.adjust()
    assert node.limits() == [limit, node.room + SPARE_TOKENS]


async def test_after_a_reconnection_everything_is_replaced_at_once() -> None:
    node = _Node(room=4)
    await node.tokens.adjust()
    node.room = 5
    await node.tokens.adjust()
    before = list(node.standing)
    node.tokens.renew()
    await node.tokens.adjust()
    assert node.limits() == [5 + SPARE_TOKENS]
    assert not any(one is node.standing[0] for one in before)
