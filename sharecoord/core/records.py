"""Records of one partition as columns: built once at arrival, handed around by reference.

A chunk has the records of one uninterrupted read. An offset in [covers_from, last] without a record
is a proven gap (compaction, control records, aborted data; design 5.8).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sharecoord.core.spans import Span, spans_of, uncovered

KEY_HASH_BYTES = 8
"""Length of a key's hash."""

_END = 1 << 63
_NO_KEY = bytes(KEY_HASH_BYTES)
_SEED = b"sharecoord key order"


def key_hash(key: bytes) -> bytes:
    """8 bytes that stand for a key wherever order is kept; never all zero.

    The hash is stored, so it is stable over restarts and versions. Two keys with one hash only wait
    for each other.
    """
    found = hashlib.blake2b(key, digest_size=KEY_HASH_BYTES, key=_SEED).digest()
    return found if found != _NO_KEY else b"\x00\x00\x00\x00\x00\x00\x00\x01"


def key_hashes_of(keys: Iterable[bytes | None]) -> bytes:
    """8 bytes per key, as groups with order by key store them; all zero = no key."""
    return b"".join([_NO_KEY if key is None else key_hash(key) for key in keys])


Part = Any
"""Records of a raw batch: `sharecoord_batches.records.Part`, which the core does not import."""

Cursor = tuple[int, int, int]
"""Where the next record of a raw batch begins; see `sharecoord_batches.records.Cursor`."""

Headers = list[tuple[str, bytes | None]]
"""Names and values, in the record's order. A byte of a name that is not UTF-8 is a lone surrogate,
as in Python's file names: so no byte is lost, and `name.encode` refuses such a name."""

RECORD_OVERHEAD_BYTES = 160
"""Memory of a record beside its payload, here and at a member: two bytes objects and list slots."""


def header_text(name: str) -> str:
    r"""The name of a header for people and members: `\xff` for each byte that is not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


class Record(NamedTuple):
    """One record without its offset."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Columns(NamedTuple):
    """Consecutive records of a chunk, without their offsets."""

    timestamps: list[int]
    """Milliseconds since the epoch."""
    keys: list[bytes | None] | None
    """None when no record has a key."""
    values: list[bytes | None]
    headers: Mapping[int, Headers]
    """By index from the first of these records; sparse."""


class RawBatch(NamedTuple):
    """A record batch of Kafka (format v2) as a broker sent it."""

    content: memoryview
    """With its header."""
    first: int
    last: int
    records: int
    """Number of its records, wanted or not."""
    compression: int
    """Kafka's number; 0 = none."""


class RecordChunk(ABC):
    """Records of one partition in order of offset. Never changed.

    All have one type of timestamps and one leader epoch.

    The attributes and `span`, `runs`, `part` are there at once. `columns`, `record`, `key`,
    `timestamp`, `key_hashes` and `due_times` may have to open raw batches first.

    Raises:
        UnreadableRecordsError: A batch can not be opened; of `columns`, `record`, `key_hashes`,
            `due_times` and `parts` alone.
    """

    __slots__ = ()

    covers_from: int
    first: int
    last: int
    size_bytes: int
    """Memory that it takes."""
    timestamp_type: int
    """Kafka's: 0 not available, 1 create time, 2 log append time."""
    leader_epoch: int
    """Of the leader that wrote the records; -1 = not known (formats before Kafka 0.11)."""
    due_times: Mapping[int, int]
    """When records are due that ask for it (`core.dispatch.schedule`): epoch ms, by index."""
    offsets: list[int] | None
    """None when contiguous."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of records."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> Columns:
        """The records [start, stop), by index."""

    @abstractmethod
    def record(self, at: int) -> Record:
        """The record with this index; opens one batch at most."""

    @abstractmethod
    def key(self, at: int) -> bytes | None:
        """The key of a record; None, too, when its batch can not be opened."""

    @abstractmethod
    def timestamp(self, at: int) -> int:
        """A record's timestamp; the latest of its batch when that can not be opened."""

    @abstractmethod
    def key_hashes(self) -> bytes:
        """8 bytes per record, for groups with order by key (design 5.6); an empty key is a key."""

    @abstractmethod
    def payload_bytes(self, start: int, stop: int) -> int:
        """Bytes of the records [start, stop) for their member: payloads and an allowance each."""

    @abstractmethod
    def fitting(
        self, start: int, stop: int, most_bytes: int, *, whole: bool = False
    ) -> tuple[int, int]:
        """How many of the records [start, stop) fit into so many bytes, and their bytes, about.

        Opens no more batches than these records, and the next one, are in. With `whole` raw batches
        count as they came, to their ends, and none is opened.
        """

    @abstractmethod
    def part(self, first: int, last: int) -> RecordChunk | None:
        """The records in [first, last] as a chunk that covers from `first`; None = none."""

    def parts(self, start: int, stop: int) -> Sequence[Part] | None:
        """The records [start, stop) as they lie in raw batches; None = they are columns."""
        return None

    def whole(self, start: int, stop: int) -> Sequence[RawBatch] | None:
        """The raw batches with the records [start, stop); None = they are columns."""
        return None

    def raw(self, start: int, stop: int) -> memoryview | None:
        """The raw batches with the records [start, stop), one behind the other; O(log batches).

        None = the records are columns, or the batches do not lie beside each other.
        """
        return None

    def batch_of(self, offset: int) -> RawBatch | None:
        """The raw batch that has this offset; None = it is in none."""
        return None

    def read_to(self, last: int, cursor: Cursor) -> None:  # noqa: B027 - columns need no cursor
        """Remembers where reading ended behind the record at offset `last`, for who reads on."""

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Indexes [i, j) of the records with offsets in [first, last]."""
        if self.offsets is None:
            return max(first - self.first, 0), min(last, self.last) - self.first + 1
        return bisect_left(self.offsets, first), bisect_right(self.offsets, last)

    def offset(self, at: int) -> int:
        """The offset of the record with this index."""
        return self.first + at if self.offsets is None else self.offsets[at]

    def runs(self, first: int, last: int = _END) -> list[Span]:
        """The consecutive offsets of records in [first, last]; O(records), O(1) without a gap."""
        if self.offsets is None:
            start = first if first > self.first else self.first
            end = last if last < self.last else self.last
            return [(start, end)] if start <= end else []
        start, stop = self.span(first, last)
        return spans_of(self.offsets[start:stop])


@dataclass(slots=True, eq=False)
class ColumnChunk(RecordChunk):
    """Columns of `count` records."""

    covers_from: int
    first: int
    last: int
    offsets: list[int] | None
    timestamps: list[int]
    """Milliseconds since the epoch."""
    timestamp_type: int
    keys: list[bytes | None] | None
    """None when no record has a key."""
    values: list[bytes | None]
    headers: Mapping[int, Headers]
    """By index; sparse."""
    size_bytes: int
    leader_epoch: int = -1
    due_times: Mapping[int, int] = field(default_factory=dict)
    _hashes: bytes | None = None

    @property
    def count(self) -> int:
        """See `RecordChunk`."""
        return len(self.values)

    def columns(self, start: int, stop: int) -> Columns:
        """See `RecordChunk`."""
        headers = self.headers
        if headers:
            headers = {i - start: h for i, h in headers.items() if start <= i < stop}
        keys = None if self.keys is None else self.keys[start:stop]
        return Columns(self.timestamps[start:stop], keys, self.values[start:stop], headers)

    def record(self, at: int) -> Record:
        """See `RecordChunk`."""
        return Record(self.key(at), self.values[at], self.headers.get(at, []), self.timestamps[at])

    def key(self, at: int) -> bytes | None:
        """See `RecordChunk`."""
        return None if self.keys is None else self.keys[at]

    def timestamp(self, at: int) -> int:
        """See `RecordChunk`."""
        return self.timestamps[at]

    def key_hashes(self) -> bytes:
        """See `RecordChunk`."""
        if self._hashes is None:
            self._hashes = key_hashes_of(self.keys or [None] * self.count)
        return self._hashes

    def payload_bytes(self, start: int, stop: int) -> int:
        """See `RecordChunk`."""
        return self.size_bytes * (stop - start) // self.count

    def fitting(
        self, start: int, stop: int, most_bytes: int, *, whole: bool = False
    ) -> tuple[int, int]:
        """See `RecordChunk`."""
        each = max(1, self.size_bytes // self.count - RECORD_OVERHEAD_BYTES)
        records = min(stop - start, most_bytes // each)
        return records, records * each

    def part(self, first: int, last: int) -> RecordChunk | None:
        """See `RecordChunk`."""
        start, stop = self.span(first, last)
        if start >= stop:
            return None
        offsets = None if self.offsets is None else self.offsets[start:stop]
        if offsets is not None and offsets[-1] - offsets[0] == len(offsets) - 1:
            offsets = None
        return ColumnChunk(
            covers_from=first,
            first=self.offset(start),
            last=self.offset(stop - 1),
            offsets=offsets,
            timestamp_type=self.timestamp_type,
            size_bytes=self.size_bytes * (stop - start) // self.count,
            leader_epoch=self.leader_epoch,
            due_times={i - start: at for i, at in self.due_times.items() if start <= i < stop},
            **self.columns(start, stop)._asdict(),
        )


def gaps_in(chunks: Iterable[RecordChunk], first: int, last: int) -> list[tuple[int, int]]:
    """The offsets of [first, last] without a record in the chunks, as inclusive ranges."""
    runs = (run for chunk in chunks for run in chunk.runs(first, last))
    return list(uncovered(runs, first, last))
