"""One timer for the earliest of many times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sharecoord.runtime.kernel.clock import RuntimeClock

AGAIN_MS = 1_000
"""After a call that failed the next one comes so much later."""


class Alarm:
    """Calls back once, at the earliest of the times that were asked for."""

    def __init__(self, clock: RuntimeClock, on_time: Callable[[], None]) -> None:
        self._clock = clock
        self._on_time = on_time
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0

    @property
    def is_set(self) -> bool:
        """Whether it will call."""
        return self._handle is not None

    def ask(self, at_ms: int) -> None:
        """Calls at `at_ms`, or earlier when that was asked for before."""
        if self._handle is not None:
            if self._at_ms <= at_ms:
                return
            self._handle.cancel()
        delay_s = max(at_ms - self._clock.now_ms(), 0) / 1000 + 0.001
        self._at_ms = at_ms
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def cancel(self) -> None:
        """Does not call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        try:
            self._on_time()
        except Exception:
            # Whoever is called asks for the next time at its end: locks would end no more.
            self.ask(self._clock.now_ms() + AGAIN_MS)
            raise
