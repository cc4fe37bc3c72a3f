"""As many launches at once as there is room for, and three times as many.

A false refusal is a launch that was refused although a slot stayed free. The baselines in the
same run do without capacity tokens: a static queue group, and unsubscribing when full.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import nats

from bench.launcher import ACCEPT_TIMEOUT_S, Tally, ask_at_once, bus_to, launch_at_once
from bench.nodes import REGION, Kind, running_nodes
from bench.report import Figure, publish
from fleetcast.local.inventory import held_instances
from fleetcast.local.nats_server import nats_cluster, nats_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetcast.local.nats_server import NatsServer

NODES: Final = 50
SLOTS_PER_NODE: Final = 20
SLOTS: Final = NODES * SLOTS_PER_NODE
CLUSTER_SERVERS: Final = 3
CONNECTIONS: Final = 48
BASELINES: Final[dict[Kind, str]] = {
    "static": "baseline: always subscribed, says when it is full",
    "unsubscribe": "baseline: unsubscribes when it is full",
}


async def run() -> None:
    """Run the storms and publish their figures."""
    figures: list[Figure] = []
    for requests in (SLOTS, 3 * SLOTS):
        figures += await _storm(requests)
    for kind, about in BASELINES.items():
        figures.append(await _baseline(kind, about))
    for requests in (SLOTS, SLOTS + SLOTS // 5):
        figures += await _cluster_storm(requests)
    publish("storm", figures)


async def _storm(requests: int) -> list[Figure]:
    with nats_server() as server:
        tally, duplicates = await _launch([server], requests, NODES)
    refused_falsely = min(requests, SLOTS) - tally.launched - tally.unknown
    values = {
        "accepted": (tally.launched, "launches accepted"),
        "slots": (SLOTS, f"of {requests} requests at once"),
        "false_refusals": (refused_falsely, "refused while a slot stayed free"),
        "timeouts": (tally.unanswered, "requests without an answer"),
        "duplicates": (duplicates, "instances on two nodes"),
    }
    return [
        Figure(key=f"{key}_{requests}", value=value, about=about)
        for key, (value, about) in values.items()
    ]


async def _cluster_storm(requests: int) -> list[Figure]:
    """Show what a cluster loses, and how long it takes to find out.

    What is too many may be lost, for a server forwards it to others that have just lost interest.
    It is not three times as many: each that is lost is looked for on all nodes, and here a single
    process is all of them.
    """
    with nats_cluster(CLUSTER_SERVERS) as servers:
        tally, duplicates = await _launch(servers, requests, NODES)
    slowest_s = max(tally.resolutions_s, default=0.0)
    return [
        Figure(
            key=f"cluster_accepted_{requests}",
            value=tally.launched,
            about=f"of {requests} requests at once in a cluster of {CLUSTER_SERVERS}",
        ),
        Figure(key=f"cluster_duplicates_{requests}", value=duplicates, about="on two nodes there"),
        Figure(
            key=f"cluster_timeouts_{requests}",
            value=tally.unanswered,
            about="requests without an answer there",
        ),
        Figure(
            key=f"cluster_unresolved_{requests}",
            value=tally.unknown,
            about=f"of which it was never known what became ({tally.asked_again} asked again)",
        ),
        Figure(
            key=f"cluster_resolution_in_waits_{requests}",
            value=round(slowest_s / ACCEPT_TIMEOUT_S, 2),
            about=f"time to find out, the slowest ({slowest_s:.2f} s), over the wait for an answer",
        ),
    ]


async def _launch(
    servers: Sequence[NatsServer],
    requests: int,
    nodes: int,
) -> tuple[Tally, int]:
    """Launch over the connections of many functions, for a function has one launch at a time."""
    async with (
        running_nodes("tokens", servers, count=nodes, slots=SLOTS_PER_NODE),
        AsyncExitStack() as connected,
    ):
        buses = [
            await connected.enter_async_context(bus_to(servers[at % len(servers)].url))
            for at in range(CONNECTIONS)
        ]
        tally = await launch_at_once(buses, requests, known_nodes=[f"n{at}" for at in range(nodes)])
        held = Counter(await held_instances(servers[0].url, REGION, nodes=nodes))
    return tally, sum(nodes_n > 1 for nodes_n in held.values())


async def _baseline(kind: Kind, about: str) -> Figure:
    with nats_server() as server:
        async with running_nodes(kind, [server], count=NODES, slots=SLOTS_PER_NODE):
            connection = await nats.connect(server.url)
            tally = await ask_at_once(connection, SLOTS)
            await connection.close()
    return Figure(key=f"{kind}_false_refusals_{SLOTS}", value=SLOTS - tally.launched, about=about)
