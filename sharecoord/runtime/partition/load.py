"""The load of a share-partition, as far as its actor knows of it: the task, and how long it waits.

What the store refuses once will be refused again: without a wait it would be loaded, decided and
refused in a circle that leaves neither the store nor the loop to others.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from sharecoord.errors import InternalError, SharecoordError

FIRST_S: Final = 0.1
"""Wait after the first refusal; doubles."""

MAX_S: Final = 30.0
"""Longest wait: so long at most after somebody has mended it."""

GOOD_S: Final = 60.0
"""Without a refusal for so long, the next one is a first one."""


class Refusals:
    """Those of one share-partition."""

    def __init__(self) -> None:
        self._delay_s = 0.0
        self._over_s = -math.inf
        """When the last wait was over."""

    def wait_s(self, error: SharecoordError, now_s: float) -> float:
        """How long to wait after an error; 0 = the store did not refuse anything."""
        if not isinstance(error, InternalError):
            return 0.0
        if now_s - self._over_s > GOOD_S:
            self._delay_s = 0.0
        self._delay_s = min(max(FIRST_S, 2 * self._delay_s), MAX_S)
        self._over_s = now_s + self._delay_s
        return self._delay_s


class Load:
    """The load under way of one share-partition, if there is one."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        """Ends when the actor is closed."""
        self.freed = asyncio.Event()
        """Another coordinator gave it free: a claim that waits is made now."""
        self.refusals = Refusals()

    def stop(self, *, for_ever: bool) -> None:
        """The incarnation ended, `for_ever` or until the next load: what is under way is void."""
        task, self.task = self.task, None
        if for_ever and task is not None and task is not asyncio.current_task():
            task.cancel()
