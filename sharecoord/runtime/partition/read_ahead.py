"""Records that were read ahead: those of a cache beyond the window's end."""

from __future__ import annotations

from sharecoord.core.records import RecordChunk
from sharecoord.runtime.partition.record_cache import RecordCache

FRESH_BYTES_HIGH = 4 << 20
"""Reading ahead stops here: 10 ms of the fastest member at 1 kB. The Kafka client's own queue lies
behind it; more is slower, because it leaves the processor's cache meanwhile."""

FRESH_RECORDS_HIGH = 60_000
"""The same for small records."""


class ReadAhead:
    """The counts of records that one share-partition has read ahead."""

    def __init__(self, cache: RecordCache) -> None:
        self._cache = cache
        self.records = self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether reading should stop."""
        return self.size_bytes > FRESH_BYTES_HIGH or self.records > FRESH_RECORDS_HIGH

    @property
    def is_low(self) -> bool:
        """Whether reading should go on."""
        return self.size_bytes * 2 < FRESH_BYTES_HIGH and self.records * 2 < FRESH_RECORDS_HIGH

    def add(self, chunk: RecordChunk) -> None:
        """All of a chunk lies beyond the window's end."""
        self.records += chunk.count
        self.size_bytes += chunk.size_bytes

    def clear(self) -> None:
        """Nothing is there any more."""
        self.records = self.size_bytes = 0

    def take(self, end_before: int, end: int) -> None:
        """The window's end moved over what it took in."""
        for chunk in self._cache.after(end_before):
            if chunk.covers_from >= end:
                break
            start, _ = chunk.span(end_before, chunk.last)
            stop = chunk.span(chunk.first, end - 1)[1]
            taken = max(0, stop - start)
            self.records -= taken
            self.size_bytes -= chunk.size_bytes * taken // chunk.count
        if not self.records:
            self.size_bytes = 0

    def recount(self, end: int) -> None:
        """The window's end moved by itself, to `end`."""
        self.clear()
        for chunk in self._cache.after(end):
            start, stop = chunk.span(end, chunk.last)
            self.records += stop - start
            self.size_bytes += chunk.size_bytes * (stop - start) // chunk.count
