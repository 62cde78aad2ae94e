"""Payloads of one share-partition in memory: read ahead, and kept for redelivery.

They count for the group; evicted payloads are read again from Kafka.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from sharecoord.core.delivery import Slice
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.partition.share_partition import AcquiredRange
from sharecoord.core.records import RecordChunk
from sharecoord.core.spans import uncovered
from sharecoord.runtime.kernel.budget import GroupBudget

FRESH_BYTES_HIGH = 4 << 20
"""Reading ahead stops here: 10 ms of the fastest member at 1 kB. The Kafka client's own queue lies
behind it; more is slower, because it leaves the processor's cache meanwhile."""

FRESH_RECORDS_HIGH = 60_000
"""The same for small records."""


class RecordCache:
    """Chunks in order of offset; their covered spans [covers_from, last] never overlap."""

    def __init__(self, budget: GroupBudget) -> None:
        self._budget = budget
        self._starts: list[int] = []
        self._chunks: list[RecordChunk] = []
        self.size_bytes = 0
        self.reread_end = 0
        """End of the last re-read: the next one goes on from there."""

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, chunk: RecordChunk) -> None:
        """Adds a chunk, or those parts of it that no other chunk covers."""
        whole = chunk.covers_from, chunk.last
        others = ((other.covers_from, other.last) for other in self.after(chunk.covers_from))
        for span in uncovered(others, *whole):
            part = chunk if span == whole else chunk.part(*span)
            if part is not None:
                self._insert(part)

    def _insert(self, chunk: RecordChunk) -> None:
        at = bisect_left(self._starts, chunk.covers_from)
        self._starts.insert(at, chunk.covers_from)
        self._chunks.insert(at, chunk)
        self.size_bytes += chunk.size_bytes
        self._budget.grew(chunk.size_bytes)

    def find(self, offset: int) -> RecordChunk | None:
        """The chunk that covers `offset` (as a record or as a proven gap)."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or self._chunks[at].last < offset:
            return None
        return self._chunks[at]

    def next_start(self, offset: int) -> int | None:
        """Where the first span beyond `offset` begins."""
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else None

    def after(self, offset: int) -> list[RecordChunk]:
        """The chunks that reach to `offset` or beyond, in order."""
        at = max(bisect_right(self._starts, offset) - 1, 0)
        if at < len(self._chunks) and self._chunks[at].last < offset:
            at += 1
        return self._chunks[at:]

    def slices(self, ranges: list[AcquiredRange]) -> list[Slice]:
        """The records of acquired ranges; every one of them must be here."""
        found: list[Slice] = []
        for acquired in ranges:
            position = acquired.first
            while position <= acquired.last:
                chunk = self.find(position)
                assert chunk is not None, f"offset {position} was acquired without its payload"
                start, stop = chunk.span(position, acquired.last)
                if found and found[-1].chunk is chunk and found[-1].stop == start:
                    found[-1] = Slice(chunk, found[-1].start, stop)
                elif stop > start:
                    found.append(Slice(chunk, start, stop))
                position = chunk.last + 1
        return found

    def drop_below(self, offset: int) -> None:
        """Forgets chunks that end below `offset`."""
        count = 0
        while count < len(self._chunks) and self._chunks[count].last < offset:
            count += 1
        if count:
            self._forget(0, count)

    def evict(self, below: int, wanted_bytes: int) -> int:
        """Gives up the lowest chunks that end below `below` until `wanted_bytes` are free.

        Returns how many bytes are.
        """
        count, freed = 0, 0
        while (
            freed < wanted_bytes and count < len(self._chunks) and self._chunks[count].last < below
        ):
            freed += self._chunks[count].size_bytes
            count += 1
        if count:
            self._forget(0, count)
        return freed

    def clear(self) -> None:
        """Forgets everything."""
        self._forget(0, len(self._chunks))

    def _forget(self, start: int, stop: int) -> None:
        freed = sum(chunk.size_bytes for chunk in self._chunks[start:stop])
        del self._chunks[start:stop]
        del self._starts[start:stop]
        self.size_bytes -= freed
        self._budget.shrank(freed)


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


def parts_without(chunk: RecordChunk, kept: OffsetSet) -> list[RecordChunk]:
    """The parts of a chunk around kept offsets, which are not to be read from the log."""
    if not kept.records:
        return [chunk]
    first, last = chunk.covers_from, chunk.last
    parts = (chunk.part(*each) for each in uncovered(kept.spans(first, last), first, last))
    return [part for part in parts if part is not None]
