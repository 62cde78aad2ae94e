"""Raw batches as a chunk: their headers are read, their records only when somebody needs them."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from sharecoord_batches import opener
from sharecoord_batches.headers import APPEND_TIME, COMPRESSION, HEADER_BYTES, BatchHeader
from sharecoord_batches.records import Columns as RawColumns
from sharecoord_batches.records import Part

from sharecoord.core.changes import Place
from sharecoord.core.dispatch.schedule import HEADERS_BEGIN_WITH, due_times
from sharecoord.core.records import (
    RECORD_OVERHEAD_BYTES,
    Columns,
    Cursor,
    Headers,
    RawBatch,
    Record,
    RecordChunk,
    key_hashes_of,
)
from sharecoord.core.spans import Span
from sharecoord.errors import UnreadableRecordsError
from sharecoord.ingest.notes import UNUSABLE_SCHEDULES
from sharecoord.ingest.open_batches import OpenBatches

CREATE_TIME: Final = 1
LOG_APPEND_TIME: Final = 2

DELETE_HORIZON: Final = 0x40
"""Attribute of batches from which compaction will take records: their first timestamp is the time
for that (KIP-534)."""

BATCH_OVERHEAD_BYTES: Final = 470
"""Memory of a batch beside its bytes: its header, a tuple of eleven numbers, where it begins, and
list slots."""

SPAN_OVERHEAD_BYTES: Final = 170
"""Memory of consecutive offsets: a tuple, three numbers, list slots."""

_END: Final = 1 << 63


class Source(NamedTuple):
    """The partition that batches come from, and where they are opened."""

    place: Place
    open_batches: OpenBatches


class BatchChunk(RecordChunk):
    """Raw batches of one partition in order of offset, with one type of timestamps.

    Its records are those at the offsets of `spans`: all of them are in the batches, which may have
    others below the first and beyond the last one.
    """

    __slots__ = (
        "_batches", "_bytes_to", "_cursor", "_data", "_due_times", "_ends", "_firsts", "_hashes",
        "_is_adjacent", "_number", "_source", "_spans", "covers_from", "first", "last",
        "leader_epoch", "size_bytes", "timestamp_type",
    )  # fmt: skip

    def __init__(
        self,
        source: Source,
        data: memoryview,
        batches: Sequence[BatchHeader],
        spans: Sequence[Span],
        covers_from: int,
        number: int,
    ) -> None:
        """Holds the memory of `data`, or a copy where they are the lesser part of it.

        `number` is that of the fetched bytes (`open_batches.next_number`).
        """
        start, end = batches[0].start, batches[-1].end
        held_bytes = memoryview(data.obj).nbytes
        if end - start < held_bytes // 2:
            held_bytes = end - start
            data = memoryview(bytes(data[start:end]))
            batches = [b._replace(start=b.start - start, end=b.end - start) for b in batches]
        self._source = source
        self._data = data
        self._number = number
        self._batches = batches
        self._is_adjacent = all(one.end == next_.start for one, next_ in pairwise(batches))
        self._firsts = [batch.base_offset for batch in batches]
        self._spans = spans
        self._ends = list(accumulate(last - first + 1 for first, last in spans))
        self._bytes_to: list[int] | None = None
        """Bytes of the records before each batch, and of all; made at the first look. Empty: some
        are compressed, or there are gaps."""
        self._cursor: tuple[int, int, Cursor] | None = None
        self._hashes: bytes | None = None
        self._due_times: Mapping[int, int] | None = None
        self.covers_from = covers_from
        self.first = spans[0][0]
        self.last = spans[-1][1]
        self.leader_epoch = batches[-1].leader_epoch
        append_time = batches[-1].attributes & APPEND_TIME
        self.timestamp_type = LOG_APPEND_TIME if append_time else CREATE_TIME
        self.size_bytes = (
            held_bytes + BATCH_OVERHEAD_BYTES * len(batches) + SPAN_OVERHEAD_BYTES * len(spans)
        )

    # -- what headers tell -------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """See `RecordChunk`."""
        return self._ends[-1]

    @property
    def offsets(self) -> list[int] | None:  # type: ignore[override]
        """See `RecordChunk`; made anew each time."""
        if len(self._spans) == 1:
            return None
        return [offset for first, last in self._spans for offset in range(first, last + 1)]

    def offset(self, at: int) -> int:
        """See `RecordChunk`."""
        span = bisect_right(self._ends, at)
        return self._spans[span][1] - (self._ends[span] - 1 - at)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """See `RecordChunk`."""
        if len(self._spans) == 1:
            return max(first - self.first, 0), min(last, self.last) - self.first + 1
        return self._records_below(first), self._records_below(last + 1)

    def _records_below(self, offset: int) -> int:
        at = bisect_left(self._spans, (offset, offset)) - 1
        if at < 0:
            return 0
        return self._ends[at] - max(self._spans[at][1] - offset + 1, 0)

    def runs(self, first: int, last: int = _END) -> list[Span]:
        """See `RecordChunk`."""
        spans = self._spans
        start = max(bisect_right(spans, (first, _END)) - 1, 0)
        stop = bisect_right(spans, (last, _END))
        cut = [(max(a, first), min(b, last)) for a, b in spans[start:stop]]
        return [each for each in cut if each[0] <= each[1]]

    def part(self, first: int, last: int) -> RecordChunk | None:
        """See `RecordChunk`."""
        spans = self.runs(first, last)
        if not spans:
            return None
        start = max(bisect_right(self._firsts, spans[0][0]) - 1, 0)
        stop = bisect_right(self._firsts, spans[-1][1])
        return BatchChunk(
            self._source, self._data, self._batches[start:stop], spans, first, self._number
        )

    # -- raw batches -------------------------------------------------------------------------------

    def parts(self, start: int, stop: int) -> list[Part]:
        """See `RecordChunk`."""
        first, last = self.offset(start), self.offset(stop - 1)
        return [self._part(at, first, last) for at in range(*self._batches_with(start, stop))]

    def whole(self, start: int, stop: int) -> list[RawBatch]:
        """See `RecordChunk`."""
        begin, end = self._batches_with(start, stop)
        return [self._raw(each) for each in self._batches[begin:end]]

    def raw(self, start: int, stop: int) -> memoryview | None:
        """See `RecordChunk`."""
        if not self._is_adjacent:
            return None
        begin, end = self._batches_with(start, stop)
        return self._data[self._batches[begin].start : self._batches[end - 1].end]

    def _batches_with(self, start: int, stop: int) -> tuple[int, int]:
        """Indexes [i, j) of the batches that have the records [start, stop)."""
        first, last = self.offset(start), self.offset(stop - 1)
        return max(bisect_right(self._firsts, first) - 1, 0), bisect_right(self._firsts, last)

    def batch_of(self, offset: int) -> RawBatch | None:
        """See `RecordChunk`."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or self._batches[at].last_offset < offset:
            return None
        return self._raw(self._batches[at])

    def _raw(self, batch: BatchHeader) -> RawBatch:
        return RawBatch(
            self._data[batch.start : batch.end],
            batch.base_offset,
            batch.last_offset,
            batch.count,
            batch.attributes & COMPRESSION,
        )

    def read_to(self, last: int, cursor: Cursor) -> None:
        """See `RecordChunk`."""
        self._cursor = bisect_right(self._firsts, last) - 1, last, cursor

    def _part(self, at: int, first: int, last: int) -> Part:
        batch = self._batches[at]
        data: memoryview | bytes = self._data
        start, end = batch.start + HEADER_BYTES, batch.end
        if batch.attributes & COMPRESSION:
            data = self._opened(at)
            start, end = 0, len(data)
        cursor: Cursor = (start, 0, -1)
        if self._cursor is not None and self._cursor[0] == at and first > self._cursor[1]:
            cursor = self._cursor[2]
        return Part(
            data, *cursor, end, batch.count, batch.base_offset,
            batch.last_offset - batch.base_offset, batch.first_timestamp,
            batch.max_timestamp if batch.attributes & APPEND_TIME else -1, first, last,
        )  # fmt: skip

    def _opened(self, at: int) -> bytes:
        batch = self._batches[at]
        key = self._number, batch.base_offset
        content = self._data[batch.start + HEADER_BYTES : batch.end]
        codec = batch.attributes & COMPRESSION
        try:
            return self._source.open_batches.records(key, codec, content)
        except ValueError as error:
            raise self._unreadable(batch.base_offset, error) from error

    def _unreadable(self, offset: int, why: ValueError) -> UnreadableRecordsError:
        return UnreadableRecordsError.of(*self._source.place, offset, why)

    # -- opened records ----------------------------------------------------------------------------

    def columns(self, start: int, stop: int) -> Columns:
        """See `RecordChunk`."""
        timestamps: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: dict[int, Headers] = {}
        for part in self.parts(start, stop):
            _, times, some_keys, some_values, some_headers = self._columns(part)
            if some_keys is not None:
                keys += [None] * (len(values) - len(keys)) + some_keys
            headers |= {len(values) + index: each for index, each in some_headers.items()}
            values += some_values
            timestamps += times
        if len(values) != stop - start:
            why = ValueError(f"{len(values)} records were found in place of {stop - start}")
            raise self._unreadable(self.offset(start), why)
        if keys:
            keys += [None] * (len(values) - len(keys))
        return Columns(timestamps, keys or None, values, headers)

    def _columns(self, part: Part) -> RawColumns:
        try:
            return opener.columns(part)
        except ValueError as error:
            raise self._unreadable(part.base_offset, error) from error

    def record(self, at: int) -> Record:
        """See `RecordChunk`."""
        (timestamp_ms,), keys, (value,), headers = self.columns(at, at + 1)
        return Record(None if keys is None else keys[0], value, headers.get(0, []), timestamp_ms)

    def key(self, at: int) -> bytes | None:
        """See `RecordChunk`."""
        try:
            return self.record(at).key
        except UnreadableRecordsError:
            return None

    def timestamp(self, at: int) -> int:
        """See `RecordChunk`; of the first record of a batch its header tells."""
        offset = self.offset(at)
        batch = self._batches[bisect_right(self._firsts, offset) - 1]
        if self.timestamp_type == LOG_APPEND_TIME:
            return batch.max_timestamp
        if offset == batch.base_offset and not batch.attributes & DELETE_HORIZON:
            return batch.first_timestamp
        try:
            return self.record(at).timestamp_ms
        except UnreadableRecordsError:
            return batch.max_timestamp

    def key_hashes(self) -> bytes:
        """See `RecordChunk`."""
        if self._hashes is None:
            keys = self.columns(0, self.count).keys
            self._hashes = key_hashes_of(keys or [None] * self.count)
        return self._hashes

    def payload_bytes(self, start: int, stop: int) -> int:
        """See `RecordChunk`; compressed batches are opened, as they are soon to be delivered."""
        size = RECORD_OVERHEAD_BYTES * (stop - start)
        if self._begins():
            return size + self._bytes_below(stop) - self._bytes_below(start)
        first, last = self.offset(start), self.offset(stop - 1)
        for at in range(bisect_right(self._firsts, first) - 1, bisect_right(self._firsts, last)):
            batch = self._batches[at]
            begin, end = self.span(max(first, batch.base_offset), min(last, batch.last_offset))
            size += self._records_bytes(at) * (end - begin) // batch.count
        return size

    def fitting(
        self, start: int, stop: int, most_bytes: int, *, whole: bool = False
    ) -> tuple[int, int]:
        """See `RecordChunk`; by the mean size of the records of each batch."""
        if not whole and (begins := self._begins()):
            end_bytes = self._bytes_below(start) + most_bytes
            at = bisect_right(begins, end_bytes) - 1
            if at < len(self._batches):
                batch, room_bytes = self._batches[at], end_bytes - begins[at]
                records = room_bytes * batch.count // (begins[at + 1] - begins[at])
                stop = min(stop, max(batch.base_offset + records - self.first, start))
            return stop - start, self._bytes_below(stop) - self._bytes_below(start)
        if whole and (raw := self.raw(start, stop)) is not None and len(raw) <= most_bytes:
            return stop - start, len(raw)
        at = bisect_right(self._firsts, self.offset(start)) - 1
        position, used_bytes = start, 0
        while position < stop:
            batch = self._batches[at]
            end = min(stop, self.span(self.first, batch.last_offset)[1])
            records, size_bytes = end - position, batch.end - batch.start
            room_bytes = most_bytes - used_bytes
            if not whole:
                each = max(1, self._records_bytes(at) // batch.count)
                records = min(records, room_bytes // each)
                size_bytes = records * each
            elif size_bytes > room_bytes:
                break
            position, used_bytes = position + records, used_bytes + size_bytes
            if position < end:
                break
            at += 1
        return position - start, used_bytes

    def _begins(self) -> list[int]:
        """See `_bytes_to`."""
        if self._bytes_to is None:
            batches = self._batches
            offsets = batches[-1].last_offset - batches[0].base_offset + 1
            is_dense = sum(batch.count for batch in batches) == offsets
            if is_dense and not any(batch.attributes & COMPRESSION for batch in batches):
                sizes = (batch.end - batch.start - HEADER_BYTES for batch in batches)
                self._bytes_to = list(accumulate(sizes, initial=0))
            else:
                self._bytes_to = []
        return self._bytes_to

    def _bytes_below(self, at: int) -> int:
        """Bytes of the records before the one with this index, in the batches from the first on."""
        begins = self._begins()
        offset = self.first + at
        batch_at = bisect_right(self._firsts, offset) - 1
        batch = self._batches[batch_at]
        size = begins[batch_at + 1] - begins[batch_at]
        return begins[batch_at] + size * (offset - batch.base_offset) // batch.count

    def _records_bytes(self, at: int) -> int:
        batch = self._batches[at]
        if batch.attributes & COMPRESSION:
            try:
                return len(self._opened(at))
            except UnreadableRecordsError:
                # The delivery will fail, and say so.
                pass
        return batch.end - batch.start - HEADER_BYTES

    # -- scheduled delivery ------------------------------------------------------------------------

    @property
    def due_times(self) -> Mapping[int, int]:  # type: ignore[override]
        """See `RecordChunk`; found at the first look, for whose groups want it."""
        if self._due_times is None:
            self._due_times = self._find_due_times()
        return self._due_times

    def _find_due_times(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for at, batch in enumerate(self._batches):
            if not self._has_schedules(at):
                continue
            start, stop = self.span(batch.base_offset, batch.last_offset)
            if start >= stop:
                continue
            columns = self.columns(start, stop)
            due, unusable = due_times(
                columns.headers, columns.timestamps, time.time_ns() // 1_000_000
            )
            found |= {start + index: at_ms for index, at_ms in due.items()}
            for index, problem in unusable[:1]:
                where = (*self._source.place, self.offset(start + index))
                UNUSABLE_SCHEDULES.note(*where, len(unusable), problem)
        return found

    def _has_schedules(self, at: int) -> bool:
        batch = self._batches[at]
        part = self._part(at, batch.base_offset, batch.last_offset)
        try:
            return opener.has_header(part, HEADERS_BEGIN_WITH)
        except ValueError as error:
            raise self._unreadable(batch.base_offset, error) from error
