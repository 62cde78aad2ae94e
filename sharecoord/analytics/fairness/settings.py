"""Settings of the fairness job; docs/fairness.md has the definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.times import check_window

LISTED_MAX: Final = 100
"""Largest number of starved members that are named per group; their number is exact."""


@dataclass(frozen=True, slots=True)
class FairnessSettings:
    """Lengths of time in the definitions of fairness."""

    window_ms: int = 10_000
    """Length of a time window, a multiple of a second."""
    starved_after_ms: int = 5_000
    """A stretch without records is starvation from this length on."""

    def __post_init__(self) -> None:
        check_window(self.window_ms)
        if self.starved_after_ms < 1:
            raise AnalyticsError(
                f"--starved-after {self.starved_after_ms} ms: it must be at least 1 ms"
            )
