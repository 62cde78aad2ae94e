"""Time windows and durations, as all jobs take them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from sharecoord.analytics.errors import AnalyticsError

SLOT_MS: Final = 1_000
"""Length of a slot: samples of all coordinators that fall into one slot are added up. Fairness is
measured at this interval (design 5)."""
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def check_window(window_ms: int) -> None:
    """Raises AnalyticsError for a window that is no whole number of slots."""
    if window_ms < SLOT_MS or window_ms % SLOT_MS:
        raise AnalyticsError(
            f"--window {window_ms} ms: it must be a whole number of seconds, because samples are "
            "taken once a second"
        )


def parse_duration_ms(text: str) -> int:
    """Reads `500ms`, `10s`, `5m`, `1h`.

    Raises:
        ValueError: Anything else; its text ends the sentence "it must be …".
    """
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h)", text.strip())
    if match is None:
        raise ValueError("a number with a unit: 500ms, 10s, 5m or 1h")
    return int(match.group(1)) * _UNITS_MS[match.group(2)]


def utc_text(micros: int | None) -> str | None:
    """A time in microseconds since the epoch as text; None stays None."""
    if micros is None:
        return None
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%Y-%m-%d %H:%M:%SZ}"


def span(seconds: float) -> str:
    """A length of time as people write it."""
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h"
