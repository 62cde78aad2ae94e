"""Records of one partition as columns: built once at arrival, handed around by reference.

A chunk is what one uninterrupted read gave. Inside [covers_from, last] every offset that the chunk
does not hold is a proven gap (compaction, control records, aborted data; design 5.8).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sharecoord.core.range_map import uncovered

_NO_KEY = bytes(8)
_SEED = b"sharecoord key order"


def key_hash(key: bytes) -> bytes:
    """8 bytes that stand for a key wherever order is kept; never all zero.

    Stable over restarts and versions: they are stored. Two keys with one hash only wait for each
    other.
    """
    found = hashlib.blake2b(key, digest_size=8, key=_SEED).digest()
    return found if found != _NO_KEY else b"\x00\x00\x00\x00\x00\x00\x00\x01"


def key_hashes_of(keys: Iterable[bytes | None]) -> bytes:
    """8 bytes per key, as groups that keep order by key store them (`RecordChunk.key_hashes`)."""
    return b"".join([_NO_KEY if key is None else key_hash(key) for key in keys])


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
    due_times: Mapping[int, int] = field(default_factory=dict)
    """When records are due that ask for it (`core.schedule`): ms since the epoch, by index."""
    _hashes: bytes | None = None

    def key_hashes(self) -> bytes:
        """8 bytes per record, in groups that keep order by key; all zero = no key (design 5.6).

        An empty key is a key.
        """
        if self._hashes is None:
            self._hashes = key_hashes_of(self.keys or [None] * self.count)
        return self._hashes

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


def gaps_in(chunks: Iterable[RecordChunk], first: int, last: int) -> list[tuple[int, int]]:
    """The offsets of [first, last] without a record in the chunks, as inclusive ranges."""
    return list(uncovered((run for chunk in chunks for run in chunk.runs(first)), first, last))
