"""What a sweep asks, and of whom: everything but what a source has answered recently enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fleetcast.instance_types import ec2_catalogue
from fleetcast.scoring import Reading
from lambdas.score_regions.collection import Probe, SignalKey
from lambdas.score_regions.pools import placement_pools
from lambdas.score_regions.signals.capacity_blocks import (
    BLOCK_SIGNALS,
    BLOCKS_HOLD_S,
    capacity_blocks_probe,
    is_sold_as_blocks,
)
from lambdas.score_regions.signals.fleet_telemetry import (
    TOTAL_GPUS,
    TOTAL_VCPUS,
    fleet_telemetry_probe,
)
from lambdas.score_regions.signals.job_queue import ATTRIBUTES, job_queue_probe
from lambdas.score_regions.signals.on_demand_prices import ON_DEMAND_PRICE, on_demand_price_probe
from lambdas.score_regions.signals.region_metrics import CLUSTER_SIGNALS, region_metrics_probe
from lambdas.score_regions.signals.spot_placement import (
    MAX_REGIONS,
    SPOT_PLACEMENT,
    spot_placement_probe,
)
from lambdas.score_regions.signals.spot_price_trends import (
    SPOT_PRICE_TREND,
    TREND_HOLDS_S,
    TYPES_A_SWEEP,
    spot_price_trend_probe,
)
from lambdas.score_regions.signals.spot_prices import SPOT_PRICE, spot_price_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fleetcast.scoring import SignalStatus
    from lambdas.score_regions.clients import AwsClients
    from lambdas.score_regions.memory import RegionMemory
    from lambdas.score_regions.signals.job_queue import JobQueues
    from lambdas.settings import Region, ScoreRegionsSettings

PRICE_SIGNALS: Final = (SPOT_PRICE, ON_DEMAND_PRICE, SPOT_PLACEMENT, SPOT_PRICE_TREND)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """probes: what is asked. known: the readings for which nobody need be asked."""

    probes: Sequence[Probe]
    known: Mapping[SignalKey, Reading]


def refresh_periods(settings: ScoreRegionsSettings) -> dict[str, float]:
    """Return for how many seconds an answer holds, by signal; the others are asked each time."""
    return {
        SPOT_PLACEMENT: settings.spot_placement_refresh_s,
        ON_DEMAND_PRICE: settings.on_demand_refresh_s,
        SPOT_PRICE_TREND: TREND_HOLDS_S,
        **dict.fromkeys(BLOCK_SIGNALS, BLOCKS_HOLD_S),
    }


def make_clients_ahead(settings: ScoreRegionsSettings, clients: AwsClients) -> None:
    """Make the clients that each sweep uses, whatever is remembered; raises botocore's errors."""
    for region in settings.regions:
        if not clients.is_aws_region(region.name):
            continue
        if region.telemetry != "fleet" and region.job_stack_name is not None:
            clients.sqs(region.name)
        if region.telemetry != "fleet" and region.cluster_name is not None:
            clients.cloudwatch(region.name)
        clients.ec2(region.name)


def plan_sweep(
    settings: ScoreRegionsSettings,
    memories: Mapping[str, RegionMemory],
    queues: JobQueues,
    clients: AwsClients,
    credentials: Callable[[str], str],
    *,
    now_s: float,
) -> Plan:
    """Plan a sweep of the regions that have a memory; every signal of theirs is asked or known.

    credentials: the content of a NATS credentials secret by its name. now_s: epoch seconds.
    """
    planner = _Planner(settings, memories, queues, clients, credentials, now_s)
    # Those that may take several calls begin first.
    probes = [*planner.load(), *planner.prices(), *planner.capacity_blocks(), *planner.shared()]
    return Plan(probes=probes, known=planner.known)


class _Planner:
    """Yields the probes that are due, and notes in `known` what takes the place of the others."""

    def __init__(
        self,
        settings: ScoreRegionsSettings,
        memories: Mapping[str, RegionMemory],
        queues: JobQueues,
        clients: AwsClients,
        credentials: Callable[[str], str],
        now_s: float,
    ) -> None:
        self.known: dict[SignalKey, Reading] = {}
        self._pools_by_type = settings.spot_placement_pools
        self._memories = memories
        self._queues = queues
        self._clients = clients
        self._credentials = credentials
        self._now_s = now_s
        self._refresh_s = refresh_periods(settings)
        self._types = tuple(dict.fromkeys(settings.scored_instance_types))
        self._regions = [region for region in settings.regions if region.name in memories]
        self._aws_regions = [
            region.name for region in settings.regions if clients.is_aws_region(region.name)
        ]
        # Those without a memory too: AWS counts a call that names others as a new one.
        self._named_together = [
            self._aws_regions[first : first + MAX_REGIONS]
            for first in range(0, len(self._aws_regions), MAX_REGIONS)
        ]

    def load(self) -> Iterator[Probe]:
        for region in self._regions:
            if region.telemetry == "fleet":
                yield self._fleet_telemetry(region)
            else:
                yield from self._cloud_telemetry(region)

    def _fleet_telemetry(self, region: Region) -> Probe:
        memory = self._memories[region.name]
        totals = {key: memory.last_good_of(key) for key in _keys((TOTAL_VCPUS, TOTAL_GPUS), region)}
        return fleet_telemetry_probe(
            region,
            self._types,
            self._credentials,
            known={key: reading for key, reading in totals.items() if reading is not None},
            now_s=self._now_s,
        )

    def _cloud_telemetry(self, region: Region) -> Iterator[Probe]:
        if region.job_stack_name is None:
            self._note("missing", "the region has no job stack", _keys(ATTRIBUTES, region))
            queue = None
        else:
            queue = self._queues.of(region.name)
            yield job_queue_probe(
                region.name, region.job_stack_name, self._queues, self._clients, now_s=self._now_s
            )
        if region.cluster_name is None:
            self._note("missing", "the region has no cluster", _keys(CLUSTER_SIGNALS, region))
        if region.cluster_name is not None or queue is not None:
            queue_url = queue.url if queue else None
            yield region_metrics_probe(region, queue_url, self._clients, now_s=self._now_s)

    def prices(self) -> Iterator[Probe]:
        for region in self._regions:
            if region.name not in self._aws_regions:
                keys = _keys(PRICE_SIGNALS, region, self._types)
                self._note("not_offered", "AWS has no such region", keys)
                continue
            yield spot_price_probe(region.name, self._types, self._clients, now_s=self._now_s)
            due = self._trends_due(region)
            if due:
                past = {
                    str(key.instance_type): self._memories[region.name].values_over_time(
                        SignalKey(SPOT_PRICE, region.name, key.instance_type)
                    )
                    for key in due
                }
                yield spot_price_trend_probe(region.name, past, self._clients, now_s=self._now_s)

    def _trends_due(self, region: Region) -> list[SignalKey]:
        """Choose those that were asked for longest ago, so few that their history is one page.

        None in a region's first sweep: launches wait for its scores, and nobody for a trend.
        """
        memory = self._memories[region.name]
        keys = _keys((SPOT_PRICE_TREND,), region, self._types)
        due = sorted(
            (key for key in keys if not self._holds([key])),
            key=lambda key: memory.asked_at_s(key) or 0.0,
        )
        turns_n = 0 if memory.swept_at_s is None else TYPES_A_SWEEP
        for key in due[turns_n:]:
            last = memory.recall(key, refresh_s=2 * TREND_HOLDS_S, now_s=self._now_s)
            self.known[key] = last or Reading.absent("missing", "its turn is yet to come")
        return due[:turns_n]

    def capacity_blocks(self) -> Iterator[Probe]:
        for region in self._regions:
            for instance_type in filter(is_sold_as_blocks, self._types):
                keys = _keys(BLOCK_SIGNALS, region, [instance_type])
                if region.name not in self._aws_regions:
                    self._note("not_offered", "AWS has no such region", keys)
                elif not self._holds(keys):
                    yield capacity_blocks_probe(
                        region.name, instance_type, self._clients, now_s=self._now_s
                    )

    def shared(self) -> Iterator[Probe]:
        """Yield what one call answers for all regions."""
        swept = [region for region in self._regions if region.name in self._aws_regions]
        if not swept:
            return
        pools = placement_pools(self._types, self._pools_by_type, ec2_catalogue())
        for pool, types in pools.items():
            for named in self._named_together:
                keys = [
                    key
                    for region in swept
                    if region.name in named
                    for key in _keys((SPOT_PLACEMENT,), region, types)
                ]
                if not self._holds(keys):
                    yield spot_placement_probe(pool, types, named, self._clients, now_s=self._now_s)
        pooled = {name for types in pools.values() for name in types}
        unpooled = [name for name in self._types if name not in pooled]
        for region in swept:
            keys = _keys((SPOT_PLACEMENT,), region, unpooled)
            self._note("not_offered", "EC2 has no such type", keys)
        for instance_type in self._types:
            keys = [
                key
                for region in swept
                for key in _keys((ON_DEMAND_PRICE,), region, [instance_type])
            ]
            if not self._holds(keys):
                yield on_demand_price_probe(
                    instance_type, self._aws_regions, self._clients, now_s=self._now_s
                )

    def _holds(self, keys: Iterable[SignalKey]) -> bool:
        """Take over what all of these were answered with, if that still holds for all."""
        answers = {
            key: self._memories[key.region].recall(
                key, refresh_s=self._refresh_s[key.signal], now_s=self._now_s
            )
            for key in keys
        }
        held = {key: answer for key, answer in answers.items() if answer is not None}
        if len(held) < len(answers):
            return False
        self.known |= held
        return True

    def _note(self, status: SignalStatus, why: str, keys: Iterable[SignalKey]) -> None:
        self.known |= dict.fromkeys(keys, Reading.absent(status, why))


def _keys(
    signals: Iterable[str], region: Region, types: Iterable[str | None] = (None,)
) -> list[SignalKey]:
    return [SignalKey(signal, region.name, name) for signal in signals for name in types]
