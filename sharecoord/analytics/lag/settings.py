"""What the lag job can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.times import check_window

TREND_WINDOWS: Final = 12
"""A trend is that of so many windows, the last ones: two minutes of the default length."""
TREND_WINDOWS_MIN: Final = 7
"""Of fewer windows none could be called a trend: chance puts six in order too often."""
TREND_SCORE: Final = 3.0
"""Of the test of Mann and Kendall: chance alone comes up to it in 0.3 % of the cases."""
KNOWN_PART: Final = 0.8
"""Of the range: a forecast made there is compared with what came after it."""
BEFORE_WINDOWS: Final = 30
"""With so many windows before its beginning a stretch of lag is compared: five minutes."""
CAUSES_MAX: Final = 5
"""Of a stretch, those that differ most."""
SCORE_MIN: Final = 2.0
"""What differs by less from the windows before is no cause."""


@dataclass(frozen=True, slots=True)
class LagSettings:
    """Settings of the definitions in docs/lag.md.

    Attributes:
        window_ms: Length of a window, a multiple of a second.
        behind_ms: A share-partition that needs longer for what waits is behind.
    """

    window_ms: int = 10_000
    behind_ms: int = 10_000

    def __post_init__(self) -> None:
        check_window(self.window_ms)
        if self.behind_ms < 1:
            raise AnalyticsError(f"--behind {self.behind_ms} ms: it must be at least 1 ms")
