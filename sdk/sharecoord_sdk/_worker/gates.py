"""Gates of handlers with a free slot: rates and breakers. Sans-IO; monotonic seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Final

from .options import Breaker

#: Seconds of its rate that a handler which was held up catches up on.
BURST_S: Final = 0.1
#: Most keys whose rate is remembered; the one that started longest ago is forgotten first.
KEYS_MAX: Final = 100_000

_ROUNDING: Final = 1e-6


class Rate:
    """A token bucket for `per_s` records per second, with a burst of `BURST_S`."""

    def __init__(self, per_s: float) -> None:
        self._gap_s = 1 / per_s
        # The rounding of floats must not delay a record.
        self._burst_s = max(0.0, BURST_S - self._gap_s) + _ROUNDING * self._gap_s
        # When the next record would be due if they came evenly.
        self._due = -math.inf

    def opens_at(self) -> float:
        return self._due - self._burst_s

    def room(self, now: float) -> int:
        """Records that may start now, once `opens_at` is over."""
        spare_s = now + self._burst_s - max(self._due, now)
        return 1 + max(0, int(spare_s / self._gap_s))

    def take(self, records: int, now: float) -> None:
        self._due = max(self._due, now) + records * self._gap_s


class KeyRates:
    """The next start of each key, `per_s` records per second. Evenly: a key has no burst."""

    def __init__(self, per_s: float) -> None:
        self._gap_s = 1 / per_s
        self._due: dict[Hashable, float] = {}

    def opens_at(self, key: Hashable) -> float:
        return self._due.get(key, -math.inf)

    def take(self, key: Hashable, now: float) -> None:
        due = self._due
        # To the end: the first entry is the one that is over first.
        due.pop(key, None)
        due[key] = now + self._gap_s
        while due:
            first = next(iter(due))
            if due[first] > now and len(due) <= KEYS_MAX:
                break
            del due[first]


class BreakerState:
    """The circuit breaker of a handler, by its policy: closed, open, or probing with one record."""

    CLOSED: Final = "closed"
    OPEN: Final = "open"
    PROBING: Final = "probing"

    def __init__(self, policy: Breaker, handler_name: str, topic: str) -> None:
        self._policy = policy
        self._handler_name = handler_name
        self.topic = topic
        self.state = self.CLOSED
        self._failed_at: deque[float] = deque(maxlen=policy.failures)
        self._probe_at = 0.0
        #: Whether the one record of a probe was started.
        self.probe_runs = False

    @property
    def probe_at(self) -> float:
        """The time of the next probe; inf unless it is open."""
        return self._probe_at if self.state == self.OPEN else math.inf

    @property
    def holds(self) -> bool:
        """Whether nothing may start."""
        return self.state == self.OPEN or (self.state == self.PROBING and self.probe_runs)

    def started(self) -> bool:
        """Notes that a handler starts; whether it is the probe."""
        if self.state != self.PROBING:
            return False
        self.probe_runs = True
        return True

    def probe(self) -> str:
        """Lets one record try; returns the log line."""
        self.state, self.probe_runs = self.PROBING, False
        return f"the breaker of handler {self._handler_name} lets one record try"

    def finished(self, error: BaseException | None, now: float, *, is_probe: bool) -> str:
        """Notes that a handler ended; returns the log line when the state has changed, else ""."""
        failed = error is not None and self._policy.counts(error)
        if self.state == self.PROBING and is_probe:
            self._failed_at.clear()
            if failed:
                return self._open(now)
            self.state = self.CLOSED
            return f"the breaker of handler {self._handler_name} closes: {self.topic} goes on"
        if self.state != self.CLOSED or not failed:
            return ""
        failures = self._failed_at
        failures.append(now)
        if len(failures) < self._policy.failures or failures[0] < now - self._policy.window_s:
            return ""
        failures.clear()
        return self._open(now)

    def _open(self, now: float) -> str:
        wait_s = self._policy.probe_after_s
        self.state, self._probe_at = self.OPEN, now + wait_s
        return (
            f"the breaker of handler {self._handler_name} opens: {self.topic} is paused, one record"
            f" tries in {wait_s:g} s"
        )
