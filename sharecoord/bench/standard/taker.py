"""A member in a thread of this process that notes when its records arrived."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sharecoord_sdk import ShareConsumer

from sharecoord.bench.errors import BenchError

POLL_S: Final = 0.05
_LOOK_S: Final = 0.005
_STOP_S: Final = 30.0


class Pace:
    """Holds a loop back to a rate, from `now_s` on."""

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._each_s = 1 / records_per_s
        self._next_s = now_s

    def wait_s(self, records: int, now_s: float) -> float:
        """Seconds to wait after `records` more records. A late loop does not catch up."""
        self._next_s = max(self._next_s, now_s - POLL_S) + records * self._each_s
        return max(0.0, self._next_s - now_s)


class Taker:
    """A member with implicit acknowledgement."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        """Starts nothing."""
        self._config = {"bootstrap.servers": address, "group.id": group}
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taker", daemon=True)
        self._failure: Exception | None = None
        self.pace: Pace | None = None
        """None: the member takes records as fast as it can."""
        self.records = 0
        self.arrivals_s: list[float] = []
        """Moments at which records came, one per poll, on the monotonic clock."""
        self.first_s: dict[int, float] = {}
        """Moment of the first record of each partition."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """The member is there until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(_STOP_S)

    def check(self) -> None:
        """BenchError when the member could not go on."""
        if self._failure is not None:
            raise BenchError(f"the member ended: {self._failure!r}") from self._failure

    def wait_for(self, records: int, deadline_s: float) -> None:
        """Waits until the member was given `records` records in all; BenchError when late."""
        end_s = time.monotonic() + deadline_s
        while self.records < records:
            self.check()
            if time.monotonic() > end_s:
                raise BenchError(f"{self.records:,} of {records:,} records within {deadline_s:g} s")
            time.sleep(_LOOK_S)

    def _run(self) -> None:
        try:
            with ShareConsumer(self._config) as consumer:
                consumer.subscribe([self._topic])
                while not self._stop.is_set():
                    self._take(consumer)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failure = error

    def _take(self, consumer: ShareConsumer) -> None:
        messages = consumer.poll(POLL_S)
        now_s = time.monotonic()
        for message in messages:
            if message.error() is not None:
                raise BenchError(f"the member was given an error: {message.error()}")
            self.first_s.setdefault(message.partition() or 0, now_s)
        if messages:
            self.arrivals_s.append(now_s)
            self.records += len(messages)
        pace = self.pace
        if pace is not None:
            self._stop.wait(pace.wait_s(len(messages), time.monotonic()))
