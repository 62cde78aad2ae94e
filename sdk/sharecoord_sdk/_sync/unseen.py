"""The clock of consumers that do not poll: one thread of the process, for what their SDK must do.

A program may work for longer than its locks last. What waits in its consumer's buffer meanwhile
goes back in time (`ConsumerCore.hand_back_unseen`). The thread runs while there is something to
look after, holds no consumer, and a forked child starts its own.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import math
import os
import time
import weakref
from queue import SimpleQueue
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final

from sharecoord_sdk._core.core import Arrival

if TYPE_CHECKING:
    from sharecoord_sdk._core.base import BaseShareConsumer

# At the end of the process the thread is waited for: see `_sync/stream.py`.
END_S: Final = 1.0


class _HandBackClock:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = Condition()
        self._numbers = itertools.count()
        self._times: list[tuple[float, int, weakref.ref[Inbox]]] = []
        self._thread: Thread | None = None
        self._is_over = False

    def schedule(self, at: float, inbox: Inbox) -> None:
        """Schedules the hand-back of an inbox's consumer."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._changed:
            if self._is_over:
                return
            heapq.heappush(self._times, (at, next(self._numbers), weakref.ref(inbox)))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="sharecoord-unseen", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, inbox: Inbox) -> None:
        """Unschedules an inbox; after the last one this returns when the thread has ended."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._times = [entry for entry in self._times if entry[2]() not in (None, inbox)]
            heapq.heapify(self._times)
            self._changed.notify()
            ends = None if self._times else self._thread
        if ends is not None:
            ends.join(END_S)

    def stop(self) -> None:
        if self._pid != os.getpid():
            return
        with self._changed:
            self._is_over = True
            self._changed.notify()
            ends = self._thread
        if ends is not None:
            ends.join(END_S)

    def _run(self) -> None:
        while (due := self._next()) is not None:
            inbox = due()
            if inbox is not None:
                inbox.hand_back()
            # The name would keep the inbox of a consumer that is gone until the next one is due.
            del inbox

    def _next(self) -> weakref.ref[Inbox] | None:
        """The next inbox that is due; None = there is none, and the thread ends."""
        with self._changed:
            while self._times and not self._is_over:
                wait_s = self._times[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._times)[2]
                self._changed.wait(wait_s)
            self._thread = None
        return None


_HAND_BACK_CLOCK: Final = _HandBackClock()
atexit.register(_HAND_BACK_CLOCK.stop)


class Inbox(SimpleQueue[Arrival]):
    """A queue for the reader of a stream, which also schedules the hand-back of unseen records."""

    def __init__(self, consumer: BaseShareConsumer) -> None:
        super().__init__()
        self._consumer = weakref.ref(consumer)
        # At most one hand-back is scheduled at a time.
        self._is_scheduled = False

    def put(self, item: Arrival, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002
        super().put(item, block, timeout)
        self.schedule(item.hand_back_unseen_at)

    def schedule(self, at: float) -> None:
        """Schedules the hand-back of unseen records of its consumer; inf = never."""
        if at < math.inf and not self._is_scheduled:
            self._is_scheduled = True
            _HAND_BACK_CLOCK.schedule(at, self)

    def forget(self) -> None:
        _HAND_BACK_CLOCK.forget(self)

    def hand_back(self) -> None:
        self._is_scheduled = False
        consumer = self._consumer()
        if consumer is not None:
            consumer._hand_back_unseen()
