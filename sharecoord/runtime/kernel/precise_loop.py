"""An asyncio loop whose short timers are good to microseconds."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys

SHORT_S = 0.01
"""Shorter timers are waited for by `select`; a longer one does not mind a millisecond."""

FD_LIMIT = 1024
"""`select` takes no descriptor from here on (FD_SETSIZE of glibc)."""

if sys.platform == "linux":

    class PreciseSelector(selectors.EpollSelector):
        """Epoll behind `select`, because epoll counts in milliseconds and rounds up.

        A timer of 1 ms took up to 2 ms whenever something else had woken the loop meanwhile.
        """

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """`EpollSelector.select`, on time."""
            if timeout is not None and 0 < timeout < SHORT_S and self.fileno() < FD_LIMIT:
                select.select((self,), (), (), timeout)
                timeout = 0
            return super().select(timeout)

    def precise_loop() -> asyncio.AbstractEventLoop:
        """A new loop, for `asyncio.Runner(loop_factory=…)`."""
        return asyncio.SelectorEventLoop(PreciseSelector())

else:
    # kqueue takes nanoseconds as it is.
    precise_loop = asyncio.new_event_loop
