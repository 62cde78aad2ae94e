"""Candidates for the next delivery: due ranges with their payload at hand, and new records.

A delivery is one column batch: its offsets are 32-bit distances from the first one, it has one type
of timestamps, and its size is bounded. So candidates end where one of these would not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sharecoord.core.limits import ACQUIRE_RECORDS_MAX, DELIVERY_BYTES_MAX
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.records import RecordChunk
from sharecoord.core.spans import offsets_of, split, uncovered
from sharecoord.core.states import Ordering
from sharecoord.core.window.window import Keys, Range
from sharecoord.errors import UnreadableRecordsError
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.partition.record_cache import RecordCache

BATCH_SPAN_MAX = 2**32
"""Offsets from the first to the last of a batch; only a compacted topic comes near."""

DUE_LOOKAHEAD_RECORDS = 2_000
"""Due records that are looked at for payloads that must be read again."""

LIFELINE_RECORDS = 100
"""Due records that still go out while the memory limit stops acquiring, and only where nothing is
under a lock: their acknowledgements are the only way in which their ranges can go."""

TOKENS_RESERVE = 100_000
"""With fewer lock tokens left the share-partition is claimed anew; no acquire uses as many."""


class _Batch:
    """Limits the candidates of a call to one batch."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._first: int | None = None
        self._timestamp_type = 0
        self._used_bytes = 0

    def takes(self, chunk: RecordChunk, first: int, last: int) -> bool:
        """Whether these records of a chunk fit into the batch."""
        if self._first is None:
            self._first, self._timestamp_type = first, chunk.timestamp_type
        same = chunk.timestamp_type == self._timestamp_type
        return same and last - self._first < BATCH_SPAN_MAX

    def cut(self, chunk: RecordChunk, first: int, last: int, enough: int) -> int:
        """The last of these consecutive records that finds room; before `first`: none does.

        The first record of a batch always does, or all of the first raw batch if these stay whole.
        So do all where `enough` of them do: the decision takes no more.
        """
        wanted = min(last, first + enough - 1)
        start, stop = chunk.span(first, wanted)
        room_bytes = DELIVERY_BYTES_MAX - self._used_bytes
        records, size_bytes = chunk.fitting(start, stop, room_bytes, whole=self._whole)
        end = first + records - 1
        if not (records or self._used_bytes):
            raw = chunk.batch_of(first) if self._whole else None
            end, size_bytes = first if raw is None else min(raw.last, wanted), DELIVERY_BYTES_MAX
        self._used_bytes += size_bytes
        return last if end == wanted else end


class Candidates(NamedTuple):
    """Records that may be acquired, and findings about other due records."""

    due: list[Range]
    fresh: list[Run]
    gaps: list[tuple[int, int]]
    """Due offsets that are no longer in the log."""
    missing: tuple[int, int] | None
    """Due offsets whose payload must be read again."""
    stored: list[int]
    """Due offsets whose payload the store has, and the cache has not; some of them, in order."""
    unreadable: UnreadableRecordsError | None = None
    """Why there are no new records, though some were read."""


def candidates(
    partition: SharePartition,
    cache: RecordCache,
    clock: RuntimeClock,
    *,
    member_id: str,
    max_records: int,
    lookahead: int,
    with_fresh: bool,
    whole: bool,
    soft: bool,
) -> Candidates:
    """Looks for records for a member.

    The last range may exceed `max_records`. `lookahead` is the number of due records that one
    re-read may serve; `with_fresh` tells whether new records are wanted as well, and `whole`
    whether the member may get raw batches as they are. With `soft` the new records end where the
    log's batch ends that has the last wanted one (KIP-1206, batch_optimized).
    """
    batch, found = _Batch(whole=whole), _Due([], [], [], [])
    if partition.window.due:
        found = _look_at_due(partition, cache, batch, member_id, max_records)
        if (found.missing or found.stored) and max_records < lookahead:
            # Records with their payload do not wait for those without.
            batch = _Batch(whole=whole)
            found = _look_at_due(partition, cache, batch, member_id, lookahead)
    fresh: list[Run] = []
    unreadable = None
    if with_fresh:
        try:
            fresh.extend(_fresh_runs(partition, cache, clock, batch, max_records, soft=soft))
        except UnreadableRecordsError as error:
            # The records before go out first.
            unreadable = None if fresh else error
    missing = _span(found.missing, cache.reread_end, lookahead) if found.missing else None
    return Candidates(found.readable, fresh, found.gaps, missing, found.stored, unreadable)


class _Due(NamedTuple):
    """Due ranges by the place of their payload; each list is in order of offset."""

    readable: list[Range]
    """Ranges with their payload at hand."""
    gaps: list[tuple[int, int]]
    missing: list[tuple[int, int]]
    """Offsets whose payload only the log has."""
    stored: list[int]
    """Offsets whose payload the store has."""


def _look_at_due(
    partition: SharePartition, cache: RecordCache, batch: _Batch, member_id: str, records: int
) -> _Due:
    """Looks at the due records with the lowest offsets."""
    found = _Due([], [], [], [])
    for first, last, value in partition.due_ranges(records, member_id):
        position = first
        while position <= last:
            chunk = cache.find(position)
            if chunk is None:
                stop = min(last, (cache.next_start(position) or last + 1) - 1)
                stored = list(partition.kept.spans(position, stop))
                found.stored.extend(offsets_of(stored))
                found.missing.extend(uncovered(stored, position, stop))
                position = stop + 1
                continue
            stop = min(last, chunk.last)
            for start, end, there in split(chunk.runs(position, stop), position, stop):
                if not there:
                    found.gaps.append((start, end))
                    continue
                fits = batch.takes(chunk, start, end)
                ends = batch.cut(chunk, start, end, end - start + 1) if fits else start - 1
                if ends >= start:
                    found.readable.append((start, ends, value))
                if ends < end:
                    return found
            position = stop + 1
    return found


def _span(missing: Sequence[tuple[int, int]], from_offset: int, records: int) -> tuple[int, int]:
    """One span around the first missing offset at or behind `from_offset`, or the very first.

    The lowest offsets alone would keep the others waiting as long as new ones come.
    """
    start = next((first for first, _ in missing if first >= from_offset), missing[0][0])
    end = start
    for first, last in missing:
        if start <= first < start + records:
            end = min(last, start + records - 1)
    return start, end


def _fresh_runs(
    partition: SharePartition,
    cache: RecordCache,
    clock: RuntimeClock,
    batch: _Batch,
    max_records: int,
    *,
    soft: bool,
) -> Iterator[Run]:
    """Runs of new records from the window's end on; records that wait do not count.

    Raises:
        UnreadableRecordsError: The records of the next runs can not be opened.
    """
    end_offset = partition.window.end_offset
    by_key = partition.settings.ordering == Ordering.KEY
    blocked = partition.settings.blocked_keys
    timed = partition.settings.scheduled_delivery
    records = waiting = 0
    for chunk in cache.after(end_offset):
        runs = chunk.runs(end_offset)
        for first, last, at_ms in _by_time(chunk, runs, clock) if timed else _untimed(runs):
            if not batch.takes(chunk, first, last):
                return
            most = last
            if not at_ms and soft:
                last_wanted = first + max_records - records - 1
                raw = chunk.batch_of(last_wanted) if last_wanted < last else None
                most = min(last, last_wanted if raw is None else raw.last)
            end = last if at_ms else batch.cut(chunk, first, most, max_records - records)
            if end < first:
                return
            keys = _keys_of(chunk, first, end) if by_key else None
            yield Run(first, end, keys, at_ms)
            count = end - first + 1
            wait = count if at_ms else _blocked_in(keys, count, blocked)
            waiting += wait
            records += count - wait
            if end < last or records >= max_records or waiting >= ACQUIRE_RECORDS_MAX:
                return


def _by_time(
    chunk: RecordChunk, runs: list[tuple[int, int]], clock: RuntimeClock
) -> Iterable[tuple[int, int, int]]:
    """Runs with the time before which their records wait (0: none), cut where it changes."""
    if not chunk.due_times:
        return _untimed(runs)
    now_ms = clock.store_now_ms()
    pieces: list[tuple[int, int, int]] = []
    for first, last in runs:
        start = chunk.span(first, first)[0] - first
        for offset in range(first, last + 1):
            due_ms = chunk.due_times.get(start + offset, 0)
            at_ms = clock.from_store(due_ms) if due_ms > now_ms else 0
            if pieces and offset > first and pieces[-1][2] == at_ms:
                pieces[-1] = (pieces[-1][0], offset, at_ms)
            else:
                pieces.append((offset, offset, at_ms))
    return pieces


def _untimed(runs: list[tuple[int, int]]) -> Iterable[tuple[int, int, int]]:
    return ((first, last, 0) for first, last in runs)


def _blocked_in(keys: Keys | None, count: int, blocked: frozenset[int]) -> int:
    """How many records of a run have a blocked key."""
    if keys is None or not blocked:
        return 0
    return sum(key in blocked for key in struct.unpack(f">{count}Q", keys.hashes))


def _keys_of(chunk: RecordChunk, first: int, last: int) -> Keys:
    """The key hashes of a run."""
    start, stop = chunk.span(first, last)
    return Keys(first, chunk.key_hashes()[start * 8 : stop * 8])
