"""The flood breaker, which stops a group of which too many records become dead letters.

A gauge keeps how many offsets were finished lately, and how many of them became dead letters.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

BUCKETS = 20
"""Parts in which the gauge forgets its window: the length is exact to a twentieth."""


class FloodSettings(NamedTuple):
    """The settings of a flood breaker."""

    ratio: float = 0.0
    """The group stops beyond this share of dead letters; 0 = never."""
    window_ms: int = 60_000
    records_min: int = 100
    """The group does not stop on fewer finished records in a window."""


class _Bucket(NamedTuple):
    begins_ms: int
    finished: int
    letters: int


class FloodGauge:
    """Finished records and dead letters of one group in its last window of time."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()

    def clear(self) -> None:
        """Forgets what was counted."""
        self._buckets.clear()

    def count(self, now_ms: int, finished: int, letters: int, settings: FloodSettings) -> None:
        """Adds records that were finished since the last call, and how many became dead letters."""
        buckets, width_ms = self._buckets, max(1, settings.window_ms // BUCKETS)
        while buckets and buckets[0].begins_ms <= now_ms - settings.window_ms:
            buckets.popleft()
        if buckets and now_ms < buckets[-1].begins_ms + width_ms:
            last = buckets.pop()
            buckets.append(
                _Bucket(last.begins_ms, last.finished + finished, last.letters + letters)
            )
        else:
            buckets.append(_Bucket(now_ms, finished, letters))

    def why_stop(self, settings: FloodSettings) -> str:
        """Why the group stops, in words; "" = it goes on."""
        letters = sum(bucket.letters for bucket in self._buckets)
        # Every dead letter is finished: the counters, which are read apart, may differ by some.
        finished = max(letters, sum(bucket.finished for bucket in self._buckets))
        if not settings.ratio or finished < settings.records_min:
            return ""
        if letters <= settings.ratio * finished:
            return ""
        return (
            f"{letters} of {finished} records of the last {settings.window_ms / 1000:g} s became "
            f"dead letters ({letters / finished:.0%}), more than "
            f"errors.deadletterqueue.flood.ratio={settings.ratio:g}"
        )
