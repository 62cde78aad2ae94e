"""Time for the runtime: the loop's monotonic clock, and its distance to the store's clock."""

from __future__ import annotations

import asyncio


class RuntimeClock:
    """Milliseconds of the loop's clock; under a virtual-time loop they are virtual too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.store_offset_ms = 0
        """Store's clock minus this clock; measured at claims and every 30 s."""

    def now_ms(self) -> int:
        """Monotonic time."""
        return int(self._loop.time() * 1000)

    def measured(self, store_now_ms: int) -> None:
        """Notes what the store's clock showed a moment ago."""
        self.store_offset_ms = store_now_ms - self.now_ms()

    def to_store(self, at_ms: int) -> int:
        """A stored time; 0 stays 0."""
        return at_ms + self.store_offset_ms if at_ms else 0

    def from_store(self, at_ms: int) -> int:
        """A time of this clock, 1 at least; 0 stays 0."""
        return max(1, at_ms - self.store_offset_ms) if at_ms else 0
