"""From fetched bytes to chunks: which batches of a log have records for a reader.

Control batches, aborted transactions (for readers of committed records) and batches that compaction
has emptied are left out: their offsets are proven gaps.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from sharecoord_batches import opener
from sharecoord_batches.checksums import is_intact
from sharecoord_batches.headers import (
    APPEND_TIME,
    COMPRESSION,
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    V2,
    BatchHeader,
    batches,
)
from sharecoord_batches.messages import message_columns
from sharecoord_batches.records import Part

from sharecoord.core.records import RECORD_OVERHEAD_BYTES, ColumnChunk, RecordChunk
from sharecoord.core.spans import Span, spans_of
from sharecoord.errors import UnreadableRecordsError
from sharecoord.ingest.batch_chunk import CREATE_TIME, LOG_APPEND_TIME, BatchChunk, Source
from sharecoord.ingest.open_batches import next_number
from sharecoord.kafka.wire.fetch import Aborted

_MARKER: Final = struct.Struct(">hh")
"""Version and type in the key of a control record."""

_ABORT: Final = 0

CHUNK_BYTES_MAX: Final = 1 << 20
"""Bytes of compressed batches in a chunk, if it has several. A group that looks for scheduled
records or needs all keys opens a whole chunk, and its deliveries want the batches open still."""

NO_TIMESTAMP: Final = 0


class Taken(NamedTuple):
    """The records in some fetched bytes."""

    chunks: list[RecordChunk]
    error: UnreadableRecordsError | None
    """Why no batch behind the chunks could be taken; None = all of them were."""


class LogBytes:
    """The log of one partition for one reader, up to the offset that it has come to."""

    def __init__(
        self,
        source: Source,
        offset: int,
        *,
        committed: bool,
        last_epoch: int = -1,
        checks_crc: bool = True,
    ) -> None:
        """Begins at an offset; `last_epoch` is the leader epoch before it, -1 = not known."""
        self._source = source
        self._committed = committed
        self._checks_crc = checks_crc
        self.position = offset
        """The next offset to be fetched."""
        self.covered = offset
        """Every record below was in a chunk; from here to `position` there is none."""
        self.last_epoch = last_epoch
        """The leader epoch of the batch before `position`; -1 = not known."""

    def take(self, data: memoryview, aborted: Iterable[Aborted]) -> Taken:
        """The records in what was fetched at `position`, as chunks in order of offset."""
        hidden = _HiddenBatches(aborted if self._committed else ())
        run: _Run | _OldRun = _Run(self._source, data)
        chunks: list[RecordChunk] = []
        error: UnreadableRecordsError | None = None
        try:
            for batch in self._new_batches(data):
                if not hidden.has(batch, data):
                    if not run.takes(batch):
                        self._end(run, chunks)
                        run = (_Run if batch.magic >= V2 else _OldRun)(self._source, data)
                    run.add(batch, self.position)
                self.position = batch.last_offset + 1
                self.last_epoch = batch.leader_epoch
        except ValueError as why:
            error = UnreadableRecordsError.of(*self._source.place, self.position, why)
        self._end(run, chunks)
        return Taken(chunks, error)

    def back_to(self, offset: int) -> None:
        """The records from `offset` on were not taken: they are to be fetched again."""
        self.position = self.covered = offset
        self.last_epoch = -1

    def _new_batches(self, data: memoryview) -> Iterator[BatchHeader]:
        """The batches that reach to `position` or beyond.

        Raises:
            ValueError: A batch is damaged, or does not follow the one before.
        """
        seen = -1
        for batch in batches(data):
            if 0 <= batch.base_offset <= seen or batch.last_offset <= seen:
                raise ValueError(f"the batch at offset {batch.base_offset} follows offset {seen}")
            seen = batch.last_offset
            if seen < self.position:
                continue
            if self._checks_crc and not is_intact(data, batch):
                raise ValueError(f"its checksum is not {batch.crc:#x}: its bytes are damaged")
            yield batch
        if seen < 0 and data:
            raise ValueError(f"{len(data)} bytes came, which are not one whole batch")

    def _end(self, run: _Run | _OldRun, chunks: list[RecordChunk]) -> None:
        chunk = run.chunk(self.covered)
        if chunk is not None:
            self.covered = chunk.last + 1
            chunks.append(chunk)


class _Run:
    """Batches that become one chunk."""

    def __init__(self, source: Source, data: memoryview) -> None:
        self._source = source
        self._data = data
        self._number = next_number()
        self._batches: list[BatchHeader] = []
        self._spans: list[Span] = []

    def takes(self, batch: BatchHeader) -> bool:
        """Whether a batch may join: its timestamps and leader are as the others'."""
        if batch.magic < V2:
            return False
        if not self._batches:
            return True
        first = self._batches[0]
        if batch.attributes & COMPRESSION and batch.end - first.start > CHUNK_BYTES_MAX:
            return False
        has_type = not (first.attributes ^ batch.attributes) & APPEND_TIME
        return has_type and first.leader_epoch == batch.leader_epoch

    def add(self, batch: BatchHeader, position: int) -> None:
        """Adds the records of a batch from `position` on."""
        if not batch.count:
            return
        first, last = max(batch.base_offset, position), batch.last_offset
        if batch.count == last - batch.base_offset + 1:
            spans = [(first, last)]
        else:
            spans = self._compacted(batch, first)
            if not spans:
                return
        self._batches.append(batch)
        if self._spans and self._spans[-1][1] + 1 == spans[0][0]:
            self._spans[-1] = self._spans[-1][0], spans.pop(0)[1]
        self._spans += spans

    def _compacted(self, batch: BatchHeader, first: int) -> list[Span]:
        """The offsets of a batch that compaction has taken records from: only they tell."""
        key = self._number, batch.base_offset
        content = self._data[batch.start + HEADER_BYTES : batch.end]
        codec = batch.attributes & COMPRESSION
        records: memoryview | bytes = content
        if codec:
            records = self._source.open_batches.records(key, codec, content)
        part = _whole(batch, records)._replace(first=first)
        return spans_of([batch.base_offset + delta for delta in opener.columns(part)[0]])

    def chunk(self, covers_from: int) -> RecordChunk | None:
        """The batches as a chunk; None = there is no record."""
        if not self._batches:
            return None
        return BatchChunk(
            self._source, self._data, self._batches, self._spans, covers_from, self._number
        )


class _OldRun:
    """Messages of the formats v0 and v1 that become one chunk; they are opened at once.

    Such data is from before Kafka 0.11, and has no headers of records.
    """

    def __init__(self, _: Source, data: memoryview) -> None:
        self._data = data
        self._timestamp_type = -1
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []

    def takes(self, batch: BatchHeader) -> bool:
        """Whether a message may join: it is old, and has the timestamp type of the others."""
        return batch.magic < V2 and self._timestamp_type in (-1, _timestamp_type(batch))

    def add(self, batch: BatchHeader, position: int) -> None:
        """Adds the records of a message, or of those that it wraps, from `position` on."""
        self._timestamp_type = _timestamp_type(batch)
        base, (deltas, timestamps, keys, values, _) = message_columns(self._data, [batch])
        start = bisect_left(deltas, position - base)
        if self._offsets and start < len(deltas) and base + deltas[start] <= self._offsets[-1]:
            raise ValueError(f"offset {base + deltas[start]} follows {self._offsets[-1]}")
        self._offsets += [base + delta for delta in deltas[start:]]
        self._timestamps += timestamps[start:]
        self._keys += [None] * (len(deltas) - start) if keys is None else keys[start:]
        self._values += values[start:]

    def chunk(self, covers_from: int) -> RecordChunk | None:
        """The messages as a chunk; None = there is no record."""
        if not self._offsets:
            return None
        offsets = self._offsets
        payload = sum(map(len, filter(None, chain(self._keys, self._values))))
        return ColumnChunk(
            covers_from=covers_from,
            first=offsets[0],
            last=offsets[-1],
            offsets=None if offsets[-1] - offsets[0] == len(offsets) - 1 else offsets,
            timestamps=self._timestamps,
            timestamp_type=self._timestamp_type,
            keys=None if self._keys.count(None) == len(offsets) else self._keys,
            values=self._values,
            headers={},
            size_bytes=payload + RECORD_OVERHEAD_BYTES * len(offsets),
        )


def _timestamp_type(batch: BatchHeader) -> int:
    if batch.magic == 0:
        return NO_TIMESTAMP
    return LOG_APPEND_TIME if batch.attributes & APPEND_TIME else CREATE_TIME


class _HiddenBatches:
    """The batches without records for a reader: control batches, and aborted transactions.

    A transaction is known by its producer from its first offset on until the producer's next
    control record that says abort.
    """

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._coming = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._producers: set[int] = set()

    def has(self, batch: BatchHeader, data: memoryview) -> bool:
        """Whether the next batch is one.

        Raises:
            ValueError: It is a control batch that can not be read.
        """
        while self._coming and self._coming[0].first_offset <= batch.last_offset:
            self._producers.add(self._coming.popleft().producer_id)
        if batch.attributes & CONTROL:
            if batch.producer_id in self._producers and _is_abort(batch, data):
                self._producers.remove(batch.producer_id)
            return True
        return bool(batch.attributes & TRANSACTIONAL) and batch.producer_id in self._producers


def _is_abort(batch: BatchHeader, data: memoryview) -> bool:
    if not batch.count:
        return False
    keys: Sequence[bytes | None] = opener.columns(
        _whole(batch, data[batch.start + HEADER_BYTES : batch.end])
    )[2] or [None]
    if keys[0] is None or len(keys[0]) < _MARKER.size:
        raise ValueError("a control record has no type")
    return int(_MARKER.unpack_from(keys[0])[1]) == _ABORT


def _whole(batch: BatchHeader, records: memoryview | bytes) -> Part:
    """All records of a batch."""
    return Part(
        records, 0, 0, -1, len(records), batch.count, batch.base_offset,
        batch.last_offset - batch.base_offset, batch.first_timestamp, -1,
        batch.base_offset, batch.last_offset,
    )  # fmt: skip
