"""The flood breaker: when so many of a group's records become dead letters that it is to stop.

A gauge keeps how many offsets were finished lately, and how many of them became dead letters. Pure:
whoever counts gives the time.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

BUCKETS = 20
"""A window is told in so many parts: its length is exact to a twentieth."""


class FloodSettings(NamedTuple):
    """When a group is to stop."""

    ratio: float = 0.0
    """More than this share; 0 = never."""
    window_ms: int = 60_000
    records_min: int = 100
    """Fewer finished records in a window say nothing."""


class _Bucket(NamedTuple):
    begins_ms: int
    finished: int
    letters: int


class FloodGauge:
    """What became of the records of one group in its last window."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()

    def clear(self) -> None:
        """Begins anew: what was before counts no more."""
        self._buckets.clear()

    def count(self, now_ms: int, finished: int, letters: int, settings: FloodSettings) -> None:
        """Adds what was finished since the last call, and how much of it became dead letters."""
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
        """Why the group is to stop, in words; "" = it is not."""
        letters = sum(bucket.letters for bucket in self._buckets)
        # What became a dead letter is finished: counters that are read apart may differ by some.
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
