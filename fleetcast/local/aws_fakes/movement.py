"""How the numbers of a scenario move: smoothly, and the same for the same seed and time."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRAWS = 2**64


class Movement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lets numbers wander about what the scenario says.

    seed: another one, another course. swing: how far a price or count goes up or down, as a part
    of itself. period_s: how long it takes to another level. price_change_s: how long a spot price
    stands on average; AWS changes one a few times a day.
    """

    seed: int = 0
    swing: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.2
    period_s: Annotated[float, msgspec.Meta(gt=0)] = 6 * 3600.0
    price_change_s: Annotated[float, msgspec.Meta(gt=0)] = 4 * 3600.0

    def level(self, name: str, at_s: float) -> float:
        """Say where a number is on its course, -1 to 1, at an epoch second."""
        step, part = divmod(at_s / self.period_s, 1)
        before, after = self._draw(name, int(step)), self._draw(name, int(step) + 1)
        smooth = part * part * (3 - 2 * part)  # no jerk at the steps
        return 2 * (before + (after - before) * smooth) - 1

    def factor(self, name: str, at_s: float) -> float:
        """Say by what to multiply a number at an epoch second: 1 ± swing."""
        return 1 + self.swing * self.level(name, at_s)

    def changes(self, name: str, start_s: float, end_s: float) -> Iterator[float]:
        """Yield when a price changed, newest first: after the start, and the last time before."""
        step = math.floor(end_s / self.price_change_s)
        while True:
            # Somewhere within its step, as prices don't change on the hour.
            at_s = (step + self._draw(f"{name} changes", step)) * self.price_change_s
            if at_s <= end_s:
                yield at_s
            if at_s <= start_s:
                return
            step -= 1

    def _draw(self, name: str, step: int) -> float:
        seeded = f"{self.seed} {name} {step}".encode()
        return int.from_bytes(hashlib.blake2b(seeded, digest_size=8).digest()) / _DRAWS
