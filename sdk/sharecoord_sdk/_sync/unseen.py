"""The inbox of a consumer on threads, with a timer for when the application does not poll.

A program may work for longer than its locks last. What waits in its consumer's buffer meanwhile
goes back in time (`ConsumerCore.hand_back_unseen`), on the timer's thread, which holds no consumer.
"""

from __future__ import annotations

import atexit
import math
import os
import time
import weakref
from queue import SimpleQueue
from threading import Timer
from typing import TYPE_CHECKING, Final

from sharecoord_sdk._core.core import Arrival

if TYPE_CHECKING:
    from sharecoord_sdk._core.base import BaseShareConsumer

# The thread of a timer is waited for: see `_sync/stream.py`.
END_S: Final = 1.0

# Timers whose threads run. A forked child has none.
_TIMERS: Final[set[Timer]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TIMERS.clear)


class Inbox(SimpleQueue[Arrival]):
    """A queue for the reader of a stream, which also schedules the hand-back of unseen records."""

    def __init__(self, consumer: BaseShareConsumer) -> None:
        super().__init__()
        self._consumer = weakref.ref(consumer)
        # Of the next hand-back; None = none is scheduled.
        self._timer: Timer | None = None

    def __del__(self) -> None:
        if self._timer in _TIMERS:
            self._timer.cancel()
            _TIMERS.discard(self._timer)

    def put(self, item: Arrival, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002
        super().put(item, block, timeout)
        self.schedule(item.hand_back_unseen_at)

    def schedule(self, at: float) -> None:
        """Schedules the hand-back of unseen records of its consumer; inf = never."""
        if at == math.inf or self._timer is not None:
            return
        wait_s = max(0.0, at - time.monotonic())
        timer = Timer(wait_s, _hand_back, (weakref.ref(self),))
        timer.name, timer.daemon = "sharecoord-unseen", True
        self._timer = timer
        # Before it starts: it may be over at once.
        _TIMERS.add(timer)
        try:
            timer.start()
        except BaseException:
            _TIMERS.discard(timer)
            self._timer = None
            raise

    def forget(self) -> None:
        """Schedules nothing more, and waits for the timer's thread."""
        timer, self._timer = self._timer, None
        if timer in _TIMERS:
            _end(timer)

    def hand_back(self) -> None:
        _TIMERS.discard(self._timer)
        self._timer = None
        consumer = self._consumer()
        if consumer is not None:
            consumer._hand_back_unseen()


def _hand_back(inbox: weakref.ref[Inbox]) -> None:
    found = inbox()
    if found is not None:
        found.hand_back()


def _end(timer: Timer) -> None:
    timer.cancel()
    if timer.is_alive():
        timer.join(END_S)
    _TIMERS.discard(timer)


@atexit.register
def _end_all() -> None:
    for timer in list(_TIMERS):
        _end(timer)
