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
from typing import Final, Protocol

from sharecoord_sdk._core.arrival import Arrival

# At the end of the process the thread is waited for: see `_sync/stream.py`.
END_S: Final = 1.0


class Looking(Protocol):
    """What looks after its records when it is asked."""

    def _look_unseen(self) -> None:
        """See `BaseShareConsumer`."""


Ref = weakref.ref[Looking]


class _Clock:
    """Calls `_look_unseen` of consumers at the times that were asked for."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = Condition()
        self._numbers = itertools.count()
        self._times: list[tuple[float, int, weakref.ref[Inbox]]] = []
        self._thread: Thread | None = None
        self._is_over = False

    def ask(self, at: float, inbox: Inbox) -> None:
        """Has the consumer of an inbox looked after at a time."""
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
        """Its consumer is closed; where it was the last one, this returns when the thread ends."""
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
        """The process ends."""
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
                inbox.look()
            # It would keep the inbox of a consumer that is gone until the next one.
            del inbox

    def _next(self) -> weakref.ref[Inbox] | None:
        """The next inbox whose time has come; None = there is none, and the thread ends."""
        with self._changed:
            while self._times and not self._is_over:
                wait_s = self._times[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._times)[2]
                self._changed.wait(wait_s)
            self._thread = None
        return None


_CLOCK: Final = _Clock()
atexit.register(_CLOCK.stop)


class Inbox(SimpleQueue[Arrival]):
    """What the reader of a stream puts arrivals into; it asks for a look when records came."""

    def __init__(self, consumer: Looking) -> None:
        super().__init__()
        self._consumer: Ref = weakref.ref(consumer)
        # At most one look is asked for at a time.
        self._is_asked = False

    def put(self, item: Arrival, block: bool = True, timeout: float | None = None) -> None:  # noqa: FBT001, FBT002
        """See `SimpleQueue.put`."""
        super().put(item, block, timeout)
        self.ask(item.unseen_at)

    def ask(self, at: float) -> None:
        """Has its consumer looked after at a time; inf = never."""
        if at < math.inf and not self._is_asked:
            self._is_asked = True
            _CLOCK.ask(at, self)

    def forget(self) -> None:
        """Its consumer is closed."""
        _CLOCK.forget(self)

    def look(self) -> None:
        """The time has come."""
        self._is_asked = False
        consumer = self._consumer()
        if consumer is not None:
            consumer._look_unseen()
