"""Settings of the lag job; docs/lag.md has the definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.times import check_window

TREND_WINDOWS: Final = 12
"""A trend is that of the last windows, this many: two minutes of the default length."""
TREND_WINDOWS_MIN: Final = 7
"""With fewer windows there is no trend: chance puts six in order too often."""
TREND_SCORE: Final = 3.0
"""From this score of the test of Mann and Kendall on windows have a trend: chance alone comes up to
it in 0.3 % of the cases."""
KNOWN_PART: Final = 0.8
"""A forecast made after this part of the range is compared with what came after it."""
BEFORE_WINDOWS: Final = 30
"""The beginning of a stretch of lag is compared with this many windows before it: five minutes."""
CAUSES_MAX: Final = 5
"""How many causes a stretch of lag has at most: those that differ most."""
SCORE_MIN: Final = 2.0
"""A value with a lower score differs too little from the windows before to be a cause."""


@dataclass(frozen=True, slots=True)
class LagSettings:
    """Lengths of time in the definitions of lag."""

    window_ms: int = 10_000
    """Length of a time window, a multiple of a second."""
    behind_ms: int = 10_000
    """A share-partition that needs longer for the records that wait is behind."""

    def __post_init__(self) -> None:
        check_window(self.window_ms)
        if self.behind_ms < 1:
            raise AnalyticsError(f"--behind {self.behind_ms} ms: it must be at least 1 ms")
