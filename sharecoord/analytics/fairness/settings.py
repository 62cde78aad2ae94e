"""What the fairness job can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.times import check_window

LISTED_MAX: Final = 100
"""How many starved members are named per group; their number is exact."""


@dataclass(frozen=True, slots=True)
class FairnessSettings:
    """Settings of the definitions in docs/fairness.md.

    Attributes:
        window_ms: Length of a window, a multiple of a second.
        starved_after_ms: From which length on a stretch without records is starvation.
    """

    window_ms: int = 10_000
    starved_after_ms: int = 5_000

    def __post_init__(self) -> None:
        check_window(self.window_ms)
        if self.starved_after_ms < 1:
            raise AnalyticsError(
                f"--starved-after {self.starved_after_ms} ms: it must be at least 1 ms"
            )
