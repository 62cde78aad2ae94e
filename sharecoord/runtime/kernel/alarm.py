"""One timer for the earliest of many times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sharecoord.runtime.kernel.clock import RuntimeClock

AGAIN_MS = 1_000
"""Wait before the next call after one that failed."""


class Alarm:
    """Calls back once, at the earliest of the times asked for."""

    def __init__(self, clock: RuntimeClock, on_time: Callable[[], None]) -> None:
        self._clock = clock
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0

    @property
    def is_set(self) -> bool:
        """Whether a call is due."""
        return self._handle is not None

    def ask(self, at_ms: int) -> None:
        """Asks for a call at `at_ms`; an earlier one that was asked for before stays."""
        if self._handle is not None:
            if self._at_ms <= at_ms:
                return
            self._handle.cancel()
        delay_s = max(at_ms - self._clock.now_ms(), 0) / 1000 + 0.001
        self._at_ms = at_ms
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def cancel(self) -> None:
        """Drops the call that is due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        try:
            self._on_time()
        except Exception:
            # The callback asks for the next time at its end: without that no lock would end.
            self.ask(self._clock.now_ms() + AGAIN_MS)
            raise
