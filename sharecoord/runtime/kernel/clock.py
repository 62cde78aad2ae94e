"""Time for the runtime: the loop's monotonic clock, and its distance to the store's clock."""

from __future__ import annotations

import asyncio

BEAT_S = 1.0
"""Interval at which a coordinator notes that it goes on."""

STANDSTILL_MS = 2_500
"""A longer time between two beats than on any busy loop: this process stood still."""

DOUBT_MS = 5_000
"""The doubt ends after this time without an answer of the store: the lease has ended, too."""

MEASURED_WITHIN_MS = 1_000
"""A slower answer may be as old as the standstill."""


class RuntimeClock:
    """Milliseconds of the loop's clock; under a virtual-time loop they are virtual too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.store_offset_ms = 0
        """Store's clock minus this clock; measured at claims and with each renewal of the lease."""
        self._beat_ms: int | None = None
        self._doubt_until_ms = 0

    def now_ms(self) -> int:
        """Monotonic time."""
        return int(self._loop.time() * 1000)

    def measured(self, store_now_ms: int, *, asked_ms: int | None = None) -> None:
        """Notes what the store's clock showed at some time between `asked_ms` (None = now) and now.

        An offset that fits is kept: of an answer that was long under way, as over a standstill,
        nobody knows when it was true. Going by its end would store deadlines that are early. An
        answer that took too long ends no doubt.
        """
        now_ms = self.now_ms()
        asked_ms = now_ms if asked_ms is None else asked_ms
        least, most = store_now_ms - now_ms, store_now_ms - asked_ms
        self.store_offset_ms = min(max(self.store_offset_ms, least), most)
        if now_ms - asked_ms <= MEASURED_WITHIN_MS:
            self._doubt_until_ms = 0

    def beat(self) -> None:
        """Notes that this process goes on; to be called every `BEAT_S`."""
        now_ms = self.now_ms()
        if self._beat_ms is not None and now_ms - self._beat_ms > STANDSTILL_MS:
            self._doubt_until_ms = now_ms + DOUBT_MS
        self._beat_ms = now_ms

    @property
    def is_doubtful(self) -> bool:
        """Whether this process stood still, and has not asked for the store's time since."""
        if self._beat_ms is not None:
            self.beat()
        return self.now_ms() < self._doubt_until_ms

    def store_now_ms(self) -> int:
        """Now, by the store's clock."""
        return self.to_store(self.now_ms())

    def to_store(self, at_ms: int) -> int:
        """A stored time; 0 stays 0."""
        return at_ms + self.store_offset_ms if at_ms else 0

    def from_store(self, at_ms: int) -> int:
        """A time of this clock, 1 at least; 0 stays 0."""
        return max(1, at_ms - self.store_offset_ms) if at_ms else 0
