"""Load and room of a region as its own agents report it over NATS, instead of CloudWatch and SQS.

A node that doesn't answer counts as full: what it would have said can only be better. How large
the region's nodes are is known from the sweeps before. Source: ADR 0007.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import msgspec
from aws_lambda_powertools import Logger

from fleetcast import messages
from fleetcast.errors import InvalidMessage
from fleetcast.scoring import Reading
from fleetcast.subjects import RegionAction, region_subject
from lambdas.bus import Bus, RegionError, Unreachable
from lambdas.score_regions.collection import Probe, SignalKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lambdas.settings import Region

logger = Logger(service="score_regions", child=True)

FLEET_CAPACITY = "fleet_capacity"  # of each type
TOTAL_VCPUS, TOTAL_GPUS, FREE_GPUS = "total_vcpus", "total_gpus", "free_gpus"
FLEET_SIGNALS = (
    *("queue_depth", "running_jobs", "gpu_utilization", "cpu_utilization"),
    *(TOTAL_VCPUS, TOTAL_GPUS, FREE_GPUS),
)

ANSWERS_WITHIN_S = 1.0  # nobody knows how many will come, so all of it is waited for
FORGET_AFTER_S = 3600.0  # nodes that haven't answered for so long have gone


def fleet_telemetry_probe(
    region: Region,
    instance_types: Sequence[str],
    credentials: Callable[[str], str],
    *,
    known: Mapping[SignalKey, Reading],
    now_s: float,
) -> Probe:
    """Read FLEET_SIGNALS of a region, and FLEET_CAPACITY of each type, in one request to all.

    credentials: as Bus takes it. known: as fleet_readings takes it.
    """
    expects = (
        *(SignalKey(signal, region.name) for signal in FLEET_SIGNALS),
        *(SignalKey(FLEET_CAPACITY, region.name, name) for name in instance_types),
    )

    def read() -> dict[SignalKey, Reading]:
        try:
            payloads = asyncio.run(_ask_all(region, credentials))
        except Unreachable as error:
            return dict.fromkeys(expects, Reading.absent("failed", str(error)))
        except RegionError as error:
            return dict.fromkeys(expects, Reading.absent("missing", str(error)))
        nodes = _decode(payloads, region.name)
        return fleet_readings(nodes, region.name, instance_types, known=known, now_s=now_s)

    return Probe(name=f"fleet telemetry of {region.name}", expects=expects, read=read)


def fleet_readings(
    nodes: Sequence[messages.CapacityReply],
    region_name: str,
    instance_types: Sequence[str],
    *,
    known: Mapping[SignalKey, Reading],
    now_s: float,
) -> dict[SignalKey, Reading]:
    """Turn the answers of a region's nodes into its readings; without any, there are none.

    known: the last good readings of TOTAL_VCPUS and TOTAL_GPUS, where there are any. now_s: epoch
    seconds.
    """
    if not nodes:
        return {}

    def total(signal: str, parts: Iterable[int]) -> Reading:
        return _total(sum(parts), known.get(SignalKey(signal, region_name)), now_s=now_s)

    def observed(value: float) -> Reading:
        return Reading.of(value, observed_at_s=now_s)

    vcpus = total(TOTAL_VCPUS, (node.total.vcpu for node in nodes))
    gpus = total(TOTAL_GPUS, (node.total.gpus for node in nodes))
    silent_vcpus = (vcpus.value or 0) - sum(node.total.vcpu for node in nodes)
    of_region = {
        "queue_depth": Reading(
            value=0.0,
            status="not_offered",
            observed_at_s=now_s,
            error="launches to the region's own nodes are not queued",
        ),
        # Each instance uses a vCPU: no more can run on nodes that are silent.
        "running_jobs": observed(sum(map(_running, nodes)) + silent_vcpus),
        "gpu_utilization": _mean_percent(
            [(node.total.gpus, _load(node).gpu_utilization) for node in nodes], gpus, now_s=now_s
        ),
        "cpu_utilization": _mean_percent(
            [(node.total.vcpu, _load(node).cpu_utilization) for node in nodes], vcpus, now_s=now_s
        ),
        TOTAL_VCPUS: vcpus,
        TOTAL_GPUS: gpus,
        FREE_GPUS: observed(sum(max(node.free.gpus, 0) for node in nodes if node.closed is None)),
    }
    return {SignalKey(signal, region_name): reading for signal, reading in of_region.items()} | {
        SignalKey(FLEET_CAPACITY, region_name, name): observed(
            sum(node.room.get(name, 0) for node in nodes)
        )
        for name in instance_types
    }


async def _ask_all(region: Region, credentials: Callable[[str], str]) -> list[bytes]:
    # A bus of its own: each probe has a thread of its own, and a connection keeps to its loop.
    bus = Bus({region.name: region}, credentials, client_name="fleetcast-score-regions")
    try:
        return await bus.gather(
            region.name,
            region_subject(region.name, RegionAction.DESCRIBE_CAPACITY),
            messages.encode(messages.RegionRequest()),
            timeout_s=ANSWERS_WITHIN_S,
        )
    finally:
        await bus.close()


def _decode(payloads: Iterable[bytes], region_name: str) -> list[messages.CapacityReply]:
    """Read what can be read: a node that isn't understood is as good as silent."""
    replies: list[messages.CapacityReply] = []
    for payload in payloads:
        try:
            replies.append(messages.decode(payload, messages.CapacityReply))
        except InvalidMessage as error:
            logger.warning("capacity reply not understood", region=region_name, why=str(error))
    return replies


def _total(answered: int, known: Reading | None, *, now_s: float) -> Reading:
    """Say how much the nodes have, those included that answered a short while ago only."""
    if known is None or known.value is None or known.observed_at_s is None:
        return Reading.of(answered, observed_at_s=now_s)
    if answered >= known.value or now_s - known.observed_at_s >= FORGET_AFTER_S:
        return Reading.of(answered, observed_at_s=now_s)
    return Reading(
        value=known.value,
        status="stale",
        observed_at_s=known.observed_at_s,
        error=f"{known.value - answered:g} of {known.value:g} are on nodes that don't answer",
    )


def _mean_percent(
    parts: Sequence[tuple[int, float | None]], total: Reading, *, now_s: float
) -> Reading:
    """Average percentages, each by the amount that it is of; all that isn't measured is at 100."""
    if not total.value:
        return Reading.absent("not_offered", "the region's nodes have none")
    measured = [(amount, percent) for amount, percent in parts if amount and percent is not None]
    if not measured:
        return Reading.absent("missing", "no node that answers measures it")
    idle = math.fsum(amount * (100 - percent) for amount, percent in measured)
    return Reading.of(100 - idle / total.value, observed_at_s=now_s)


def _running(node: messages.CapacityReply) -> int:
    """How many instances a node runs; of one that doesn't say, as many as may be."""
    running_n = _load(node).running_instances
    return max(node.total.vcpu - node.free.vcpu, 0) if running_n is None else running_n


def _load(node: messages.CapacityReply) -> messages.NodeLoad:
    return messages.NodeLoad() if node.load is msgspec.UNSET else node.load
