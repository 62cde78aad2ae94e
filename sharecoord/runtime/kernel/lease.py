"""The lease by which a coordinator holds its name on the store (design 9)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import structlog

from sharecoord.errors import SharecoordError, StoreFatalError, StoreInUseError
from sharecoord.ports import Store
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.kernel.store_thread import StoreCaller

log = structlog.get_logger(__name__)


class Lease:
    """Renews the lease again and again, and knows until when it lives for certain."""

    def __init__(
        self,
        store: Store,
        caller: StoreCaller,
        clock: RuntimeClock,
        *,
        duration_ms: int = 4_000,
        renewal_s: float = 1.0,
    ) -> None:
        """Renews nothing yet.

        Renewals have a caller of their own, so that they do not wait behind commits; the clock
        learns the store's time from each. After `duration_ms` without one, by the store's clock, a
        coordinator counts as dead.
        """
        self._store = store
        self.caller = caller
        self._clock = clock
        self.duration_ms = duration_ms
        self._renewal_s = renewal_s
        self._until_ms = math.inf
        """The certain end of the lease, monotonic; infinite before the first renewal."""
        self.store_ok = True
        """Whether the last renewal came through."""
        self.on_renewed: Callable[[int, bool], None] = lambda *_: None
        """Hears the store's time, and whether the lease had lapsed before."""

    @property
    def has_lapsed(self) -> bool:
        """Whether others may take this coordinator for dead: then it hands out nothing."""
        return self._clock.now_ms() > self._until_ms

    async def run(self) -> None:
        """Renews until cancelled.

        Raises:
            StoreFatalError: The store is broken.
            StoreInUseError: Another process has the name.
        """
        while True:
            asked_ms = self._clock.now_ms()
            try:
                store_ms = await self.caller.call(
                    self._store.renew_lease, duration_ms=self.duration_ms
                )
            except (StoreFatalError, StoreInUseError):
                raise
            except SharecoordError as error:
                self.store_ok = False
                log.warning("lease not renewed", why=error.message)
            else:
                had_lapsed = self.has_lapsed
                self._clock.measured(store_ms, asked_ms=asked_ms)
                self.store_ok, self._until_ms = True, asked_ms + self.duration_ms
                self.on_renewed(store_ms, had_lapsed)
            await asyncio.sleep(self._renewal_s)
