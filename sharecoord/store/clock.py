"""The clock of stores that live in this process or on this host."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since the epoch by the host's clock."""
    return time.time_ns() // 1_000_000
