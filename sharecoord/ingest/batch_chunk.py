"""Raw batches as a chunk: their headers are read, their records only when somebody needs them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import cramjam
from sharecoord_batches import records
from sharecoord_batches.headers import APPEND_TIME, COMPRESSION, HEADER_BYTES, BatchHeader
from sharecoord_batches.records import Part

from sharecoord.core.records import Headers, RecordChunk, key_hashes_of

try:
    from sharecoord_batches import _native as opener
except ImportError:
    opener = records

CREATE_TIME: Final = 1
LOG_APPEND_TIME: Final = 2

BATCH_OVERHEAD_BYTES: Final = 200
"""Memory of a batch beside its bytes: its header as a tuple."""

DECOMPRESS: Final = {
    1: cramjam.gzip.decompress,
    2: cramjam.snappy.decompress,
    3: cramjam.lz4.decompress,
    4: cramjam.zstd.decompress,
}
"""By the number of the codec in a batch's attributes."""


class BatchChunk(RecordChunk):
    """Batches that follow each other without a gap, and have one type of timestamps.

    Either no offset of theirs is without a record (`is_dense`: headers tell), or there is one batch
    alone, which compaction left gaps in: it is opened at once.
    """

    __slots__ = (
        "_batches", "_columns", "_data", "_firsts", "_hashes", "_open", "covers_from", "due_times",
        "first", "is_dense", "last", "leader_epoch", "size_bytes", "timestamp_type",
    )  # fmt: skip

    def __init__(
        self, data: memoryview, batches: Sequence[BatchHeader], covers_from: int, first: int
    ) -> None:
        """`first`: records below are of no interest; a broker sends whole batches."""
        self._data = data
        self._batches = batches
        self._firsts = [batch.base_offset for batch in batches]
        self._open: tuple[int, memoryview | bytes] | None = None
        self._columns: records.Columns | None = None
        self._hashes: bytes | None = None
        last = batches[-1]
        self.covers_from = covers_from
        self.last = last.last_offset
        self.leader_epoch = last.leader_epoch
        self.timestamp_type = LOG_APPEND_TIME if last.attributes & APPEND_TIME else CREATE_TIME
        size = sum(batch.end - batch.start for batch in batches)
        self.size_bytes = size + BATCH_OVERHEAD_BYTES * len(batches)
        self.due_times: Mapping[int, int] = {}
        self.is_dense = all(
            batch.count == batch.last_offset - batch.base_offset + 1 for batch in batches
        )
        self.first = max(first, batches[0].base_offset)
        if not self.is_dense:
            self.first = self.first + self._all()[0][0]

    @property
    def offsets(self) -> list[int] | None:  # type: ignore[override]
        """None when contiguous."""
        if self.is_dense:
            return None
        base = self._batches[0].base_offset
        return [base + delta for delta in self._all()[0]]

    @property
    def count(self) -> int:
        """Number of records."""
        return self.last - self.first + 1 if self.is_dense else len(self._all()[0])

    @property
    def timestamps(self) -> list[int]:  # type: ignore[override]
        """Milliseconds since the epoch."""
        return self._all()[1]

    @property
    def keys(self) -> list[bytes | None] | None:  # type: ignore[override]
        """None when no record has a key."""
        return self._all()[2]

    @property
    def values(self) -> list[bytes | None]:  # type: ignore[override]
        """The values."""
        return self._all()[3]

    @property
    def headers(self) -> Mapping[int, Headers]:  # type: ignore[override]
        """By index; sparse."""
        return self._all()[4]

    def key_hashes(self) -> bytes:
        """See `RecordChunk`."""
        if self._hashes is None:
            self._hashes = key_hashes_of(self.keys or [None] * self.count)
        return self._hashes

    def parts(self, start: int, stop: int) -> Sequence[Part]:
        """See `RecordChunk`."""
        if self.is_dense:
            first, last = self.first + start, self.first + stop - 1
        else:
            offsets = self.offsets
            assert offsets is not None, "not dense"
            first, last = offsets[start], offsets[stop - 1]
        found: list[Part] = []
        at = bisect_right(self._firsts, first) - 1
        while at < len(self._batches) and self._batches[at].base_offset <= last:
            found.append(self._part(at, first, last))
            at += 1
        return found

    def _part(self, at: int, first: int, last: int) -> Part:
        batch = self._batches[at]
        data: memoryview | bytes = self._data
        start, end = batch.start + HEADER_BYTES, batch.end
        if batch.attributes & COMPRESSION:
            data = self._decompressed(at)
            start, end = 0, len(data)
        return Part(
            data, start, 0, -1, end, batch.count, batch.base_offset,
            batch.last_offset - batch.base_offset, batch.first_timestamp,
            batch.max_timestamp if batch.attributes & APPEND_TIME else -1, first, last,
        )  # fmt: skip

    def _decompressed(self, at: int) -> memoryview | bytes:
        if self._open is None or self._open[0] != at:
            batch = self._batches[at]
            content = self._data[batch.start + HEADER_BYTES : batch.end]
            self._open = at, bytes(DECOMPRESS[batch.attributes & COMPRESSION](content))
        return self._open[1]

    def _all(self) -> records.Columns:
        """The columns of all records from `first` on."""
        if self._columns is None:
            deltas: list[int] = []
            timestamps: list[int] = []
            keys: list[bytes | None] = []
            values: list[bytes | None] = []
            headers: dict[int, Headers] = {}
            for at in range(len(self._batches)):
                part = self._part(at, self.first, self.last)
                found = opener.columns(part)
                base = part.base_offset - self._firsts[0]
                deltas += [base + delta for delta in found[0]]
                timestamps += found[1]
                keys += found[2] if found[2] is not None else [None] * len(found[3])
                headers |= {len(values) + index: each for index, each in found[4].items()}
                values += found[3]
            has_keys = any(key is not None for key in keys)
            self._columns = deltas, timestamps, keys if has_keys else None, values, headers
        return self._columns
