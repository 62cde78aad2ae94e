"""The load of a share-partition, as its actor knows it.

Changes that the store refuses once will be refused again. Without a wait the share-partition would
be loaded, decided and refused in a circle that leaves neither the store nor the loop to others.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from sharecoord.errors import InternalError, SharecoordError

FIRST_S: Final = 0.1
"""Wait after the first refusal; doubles."""

MAX_S: Final = 30.0
"""Longest wait; nothing is handed out for so long after the fault is mended."""

GOOD_S: Final = 60.0
"""After this time without a refusal the next one counts as the first."""


class Load:
    """The load of one share-partition: the task under way, and the wait after refused changes."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        """The load under way; it ends when the actor is closed."""
        self.freed = asyncio.Event()
        """Set when another coordinator gave the share-partition free: a waiting claim is made."""
        self._delay_s = 0.0
        self._over_s = -math.inf
        """When the last wait was over."""

    def wait_s(self, error: SharecoordError, now_s: float) -> float:
        """How long to wait after an error; 0 when the store did not refuse anything."""
        if not isinstance(error, InternalError):
            return 0.0
        if now_s - self._over_s > GOOD_S:
            self._delay_s = 0.0
        self._delay_s = min(max(FIRST_S, 2 * self._delay_s), MAX_S)
        self._over_s = now_s + self._delay_s
        return self._delay_s

    def stop(self, *, for_ever: bool) -> None:
        """The incarnation ended, `for_ever` or until the next load: a load under way is void."""
        task, self.task = self.task, None
        if for_ever and task is not None and task is not asyncio.current_task():
            task.cancel()
