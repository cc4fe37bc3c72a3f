"""What a walk has asked and been answered, as the launch's story keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleetcast.launch_story import Ask, AskOutcome, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_ASKS_KEPT: Final = 200


@dataclass
class AskLog:
    """What was asked and answered, bounded. began_s: when the launch began, on the clock."""

    began_s: float
    clock_s: Callable[[], float]
    asks: list[Ask] = field(default_factory=list)
    left_out_n: int = 0

    def note(
        self,
        region: str,
        subject: str,
        outcome: AskOutcome,
        *,
        attempt: int,
        count: int,
        began_s: float,
        node: str | None = None,
        detail: str = "",
    ) -> None:
        """Add a question that has been answered just now."""
        if len(self.asks) == _MAX_ASKS_KEPT:
            self.left_out_n += 1
            return
        self.asks.append(
            Ask(
                region=region,
                subject=subject,
                outcome=outcome,
                attempt=attempt,
                count=count,
                began_ms=round((began_s - self.began_s) * 1000, 1),
                took_ms=round((self.clock_s() - began_s) * 1000, 1),
                node=node,
                detail=shortened(detail),
            )
        )
