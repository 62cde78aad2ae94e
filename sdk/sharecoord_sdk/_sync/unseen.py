"""The inbox of a consumer on threads, with a timer for when the application does not poll.

A program may work for longer than its locks last. What waits in its consumer's buffer meanwhile
goes back in time (`ConsumerCore.hand_back_unseen`), on the timer's thread, which holds no consumer.
"""

from __future__ import annotations

import math
import time
import weakref
from queue import SimpleQueue
from threading import Timer
from typing import TYPE_CHECKING

from sharecoord_sdk._core.core import Arrival

from . import timers

if TYPE_CHECKING:
    from sharecoord_sdk._core.base import BaseShareConsumer


class Inbox(SimpleQueue[Arrival]):
    """A queue for the reader of a stream, which also schedules the hand-back of unseen records."""

    def __init__(self, consumer: BaseShareConsumer) -> None:
        super().__init__()
        self._consumer = weakref.ref(consumer)
        # Of the next hand-back; None = none is scheduled.
        self._timer: Timer | None = None

    def __del__(self) -> None:
        timers.cancel(self._timer)

    def put(self, item: Arrival, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002
        super().put(item, block, timeout)
        self.schedule(item.hand_back_unseen_at)

    def schedule(self, at: float) -> None:
        """Schedules the hand-back of unseen records of its consumer; inf = never."""
        if at == math.inf or self._timer is not None:
            return
        wait_s = at - time.monotonic()
        timer = timers.make("sharecoord-unseen", wait_s, _hand_back, weakref.ref(self))
        self._timer = timer
        try:
            timers.start(timer)
        except BaseException:
            self._timer = None
            raise

    def forget(self) -> None:
        """Schedules nothing more, and waits for the timer's thread."""
        timer, self._timer = self._timer, None
        if timer is not None and timers.is_known(timer):
            timers.end(timer)

    def hand_back(self) -> None:
        timers.forget(self._timer)
        self._timer = None
        consumer = self._consumer()
        if consumer is not None:
            consumer._hand_back_unseen()


def _hand_back(inbox: weakref.ref[Inbox]) -> None:
    found = inbox()
    if found is not None:
        found.hand_back()
