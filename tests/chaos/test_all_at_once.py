"""Everything that the other cases do, at random and at the same time."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import FunctionDied
from tests.chaos.post import Post
from tests.chaos.world import LEFT_S, ONE, Count, side_by_side

if TYPE_CHECKING:
    from tests.chaos.functions import Function
    from tests.chaos.nodes import NodesProcess
    from tests.chaos.post import Fate
    from tests.chaos.world import Answer, World
    from tests.nats_process import NatsProcess

COUNTS = (ONE, Count(2, 2), Count(1, 3), Count(3, 4))
LAUNCHES = 24
# A launch passes about so many points.
POINTS = 22


class Chance:
    """What happens to whom. The seed decides on it; in which order it happens, the machine."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def fate(self, _: str) -> Fate:
        if self.draw.random() < 0.8:
            return "delivered"
        fates: list[Fate] = ["lost", "late", "answer lost", "twice"]
        return self.draw.choice(fates)


class Disaster:
    """One world in which everything goes wrong. answers: what callers were told, by token."""

    def __init__(self, world: World, nodes: list[NodesProcess], chance: Chance) -> None:
        self.counts = {f"{at}": chance.draw.choice(COUNTS) for at in range(LAUNCHES)}
        self.answers: list[tuple[str, Answer]] = []
        self.posts: list[Post] = []
        self._world = world
        self._nodes = nodes
        self._chance = chance

    async def launch(self, token: str) -> None:
        """Launch as a client does that asks again after an error."""
        for _ in range(2):
            post = Post(fate=self._chance.fate)
            self.posts.append(post)
            function = await self._world.function(post=post)
            if self._chance.draw.random() < 0.4:
                function.faults.die_at(self._chance.draw.randrange(POINTS))
            await self.launch_with(function, token)

    async def launch_with(self, function: Function, token: str) -> None:
        answer = await self._world.launch(function, self.counts[token], token=token)
        self.answers.append((token, answer))

    async def reconcile(self) -> None:
        """Reconcile again and again, also while launches are under way, and die of it."""
        for _ in range(3):
            reconciler = await self._world.reconciler()
            if self._chance.draw.random() < 0.5:
                reconciler.faults.die_at(self._chance.draw.randrange(POINTS))
            with contextlib.suppress(FunctionDied):
                await reconciler.reconcile()
            self._world.clock.move(self._chance.draw.choice((0.2, 5.0, LEFT_S)))

    async def disturb(self, server: NatsProcess) -> None:
        """Kill a node, the server, and a node."""
        await self._die_and_come_back()
        await server.kill()
        await server.start()
        await self._die_and_come_back()

    async def _die_and_come_back(self) -> None:
        node = self._chance.draw.choice(self._nodes)
        await node.kill()
        await node.start()


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_happens_each_token_has_one_launch_and_nothing_else_runs(
    world: World, seed: int
) -> None:
    world.accept_timeout_s = 0.5
    server = await world.start_region()
    nodes = [await world.start_nodes(f"n{at}", slots=60) for at in range(3)]
    await world.know_the_nodes()
    disaster = Disaster(world, nodes, Chance(seed))
    await side_by_side(
        disaster.reconcile(), disaster.disturb(server), *map(disaster.launch, disaster.counts)
    )
    await world.inventories()  # all of them are back
    for post in disaster.posts:
        await post.deliver_late(await world.outside())
    world.clock.move(LEFT_S)
    false_refusals = world.tally.refused  # there is room for three times as many
    calm = await world.function()
    for token in disaster.counts:
        await disaster.launch_with(calm, token)
    for token in disaster.counts:
        told = {ids for one, ids in disaster.answers if one == token and isinstance(ids, frozenset)}
        assert len(told) == 1, (token, told)  # I5
    await world.settle(f"all at once, seed {seed}", false_refusals=false_refusals)
