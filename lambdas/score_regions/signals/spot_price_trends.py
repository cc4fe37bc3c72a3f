"""Where spot prices are going: EC2's history of the last days, and what sweeps saw before."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import TYPE_CHECKING, Final

from fleetcast.scoring import Reading, price_change_per_week
from lambdas.score_regions.collection import Probe, SignalKey
from lambdas.score_regions.memory import DAY_S, Series
from lambdas.score_regions.signals.spot_prices import price_history

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lambdas.score_regions.clients import AwsClients

SPOT_PRICE_TREND: Final = "spot_price_trend"
TREND_HOLDS_S: Final = float(DAY_S)
LOOK_BACK: Final = timedelta(days=7)
PRICES_KEPT: Final = Series(bin_s=DAY_S // 4, kept_s=14 * DAY_S)
# A week of ten types fits into an answer of one page.
TYPES_A_SWEEP: Final = 10


def spot_price_trend_probe(
    region_name: str,
    past: Mapping[str, Mapping[int, float]],
    clients: AwsClients,
    *,
    now_s: float,
) -> Probe:
    """Read each type's spot_price_trend (change a week over the mean, -1 to 1) in a region.

    past: by type, the prices that sweeps have seen, by bin of PRICES_KEPT; empty for none.
    """
    keys = {name: SignalKey(SPOT_PRICE_TREND, region_name, name) for name in past}

    def read() -> dict[SignalKey, Reading]:
        start = datetime.fromtimestamp(now_s, UTC) - LOOK_BACK
        changes: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in past}
        for entry in price_history(clients, region_name, list(past), start=start):
            zones = changes[entry["InstanceType"]]
            change = (entry["Timestamp"].timestamp(), float(entry["SpotPrice"]))
            zones.setdefault(entry["AvailabilityZone"], []).append(change)
        return {key: _trend(changes[name], past[name], now_s=now_s) for name, key in keys.items()}

    return Probe(
        name=f"spot price trends of {region_name}", expects=tuple(keys.values()), read=read
    )


def _trend(
    changes: Mapping[str, list[tuple[float, float]]], past: Mapping[int, float], *, now_s: float
) -> Reading:
    """Fit a line through the mean over zones at regular times, and what was seen before these.

    changes: by zone, the prices and since when they held, epoch seconds.
    """
    if not changes:
        return Reading.absent("not_offered", f"no spot price within {LOOK_BACK.days} days")
    at_bin: defaultdict[int, list[float]] = defaultdict(list)
    newest_bin = int(now_s // PRICES_KEPT.bin_s)
    oldest_bin = newest_bin - int(LOOK_BACK.total_seconds()) // PRICES_KEPT.bin_s
    for zone in changes.values():
        zone.sort()
        for number in range(oldest_bin, newest_bin + 1):
            ends_at_s = (number + 1) * PRICES_KEPT.bin_s
            held = [usd for since_s, usd in zone if since_s < ends_at_s]
            if held:
                at_bin[number].append(held[-1])
    prices = dict(past) | {number: fmean(zones) for number, zones in at_bin.items()}
    trend = price_change_per_week(
        {float(number * PRICES_KEPT.bin_s): usd for number, usd in prices.items()}
    )
    return Reading.of(trend, observed_at_s=now_s)
