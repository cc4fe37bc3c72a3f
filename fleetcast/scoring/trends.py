"""Trends are slopes of least-squares lines, relative to the mean of what they go through."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from fleetcast.scoring.numbers import require_finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CAPACITY_BLOCK_WEEKS = 26
STABLE_PRICE_BAND = 0.05  # a relative slope per step within it is "stable"
MIN_POINTS = 2  # fewer make no line
WEEK_S = 7 * 86_400.0

PriceDirection = Literal["rising", "stable", "falling"]


class PriceTrend(msgspec.Struct, frozen=True):
    """How a price moved over a series.

    slope: price units per step, positive when it rises. normalized_slope: slope over the mean
    price, -1 to 1. price_changes: steps at which the price differs from the one before.
    """

    slope: float
    normalized_slope: float
    price_changes: int
    direction: PriceDirection


def price_trend(prices: Sequence[float]) -> PriceTrend:
    """Fit a line to a series of prices, newest first and evenly spaced; slopes to four places.

    A series that is shorter than two or whose mean isn't positive has no slope.
    Raises InvalidSignal for a price that is not a finite number.
    """
    for price in prices:
        require_finite("price", price)
    if len(prices) < MIN_POINTS:
        return PriceTrend(0.0, 0.0, 0, "stable")
    changes = sum(newer != older for newer, older in pairwise(prices))
    mean = math.fsum(prices) / len(prices)
    if mean <= 0:
        return PriceTrend(0.0, 0.0, changes, "stable")
    slope = _slope(range(len(prices)), prices[::-1])
    normalized = _bounded(slope / mean)
    direction: PriceDirection = "stable"
    if abs(normalized) > STABLE_PRICE_BAND:
        direction = "rising" if normalized > 0 else "falling"
    return PriceTrend(round(slope, 4), normalized, changes, direction)


def price_change_per_week(prices: Mapping[float, float]) -> float:
    """Fit a line to prices by the time at which they were seen, in any order and spacing.

    prices: by epoch second. Returns its rise a week over the mean price, -1 to 1, to four places;
    0 for fewer than two prices or a mean that isn't positive.
    Raises InvalidSignal for a price that is not a finite number.
    """
    for price in prices.values():
        require_finite("price", price)
    if len(prices) < MIN_POINTS:
        return 0.0
    mean = math.fsum(prices.values()) / len(prices)
    if mean <= 0:
        return 0.0
    return _bounded(_slope(list(prices), list(prices.values())) * WEEK_S / mean)


def capacity_block_trend(weekly_counts: Sequence[float]) -> float:
    """Tell whether capacity block offerings grow or dwindle over the weeks: 1 to -1.

    weekly_counts: offerings per week, earliest first, over CAPACITY_BLOCK_WEEKS weeks; a negative
    count is 0. Returns the least-squares change over half that span relative to the mean week,
    and 0 when fewer than two weeks have any.
    Raises InvalidSignal for a count that is not a finite number.
    """
    return _count_trend(dict(enumerate(weekly_counts)), span=CAPACITY_BLOCK_WEEKS)


def observed_block_trend(daily_counts: Mapping[int, float]) -> float:
    """Tell whether the blocks on offer have become more or fewer from day to day: 1 to -1.

    daily_counts: blocks on offer by the number of the day, days may be absent; a negative count
    is 0. Measured and bounded as capacity_block_trend, over the days from the first to the last.
    Raises InvalidSignal for a count that is not a finite number.
    """
    if not daily_counts:
        return 0.0
    return _count_trend(daily_counts, span=max(daily_counts) - min(daily_counts) + 1)


def _count_trend(counts: Mapping[int, float], *, span: int) -> float:
    """Return the change over half the span of a line through counts by step, over their mean."""
    kept = {
        step: max(0.0, require_finite("count of offers", count)) for step, count in counts.items()
    }
    if sum(count > 0 for count in kept.values()) < MIN_POINTS:
        return 0.0
    mean = math.fsum(kept.values()) / len(kept)
    return _bounded(_slope(list(kept), list(kept.values())) * span / (2 * mean))


def _slope(places: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line through at least two points, no two of one place."""
    middle = math.fsum(places) / len(places)
    covariance = math.fsum(
        (place - middle) * value for place, value in zip(places, values, strict=True)
    )
    return covariance / math.fsum((place - middle) ** 2 for place in places)


def _bounded(trend: float) -> float:
    return round(min(max(trend, -1.0), 1.0), 4)
