"""Records of one partition as columns: built once at arrival, handed around by reference.

A chunk is what one uninterrupted read gave. Inside [covers_from, last] every offset that the chunk
does not hold is a proven gap (compaction, control records, aborted data; design 5.8).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

Headers = list[tuple[str, bytes | None]]


@dataclass(slots=True, eq=False)
class RecordChunk:
    """Columns of `count` records in order of offset. Never changed after it was built."""

    covers_from: int
    first: int
    last: int
    offsets: list[int] | None
    """None when contiguous."""
    timestamps: list[int]
    """Milliseconds since the epoch."""
    timestamp_type: int
    """Kafka's: 0 not available, 1 create time, 2 log append time."""
    keys: list[bytes | None] | None
    """None when no record has a key."""
    values: list[bytes | None]
    headers: dict[int, Headers]
    """By index in the chunk; sparse."""
    size_bytes: int
    leader_epoch: int = -1

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.values)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Indexes [i, j) of the records with offsets in [first, last]."""
        if self.offsets is None:
            return max(first - self.first, 0), min(last, self.last) - self.first + 1
        return bisect_left(self.offsets, first), bisect_right(self.offsets, last)

    def runs(self, from_offset: int) -> list[tuple[int, int]]:
        """The consecutive offsets of records at or beyond `from_offset`, as inclusive ranges."""
        if self.offsets is None:
            start = max(self.first, from_offset)
            return [(start, self.last)] if start <= self.last else []
        offsets = self.offsets
        found: list[tuple[int, int]] = []
        start = previous = -2
        for offset in offsets[bisect_left(offsets, from_offset) :]:
            if offset != previous + 1:
                if start >= 0:
                    found.append((start, previous))
                start = offset
            previous = offset
        if start >= 0:
            found.append((start, previous))
        return found
