"""What a share-partition could hand out next: due ranges with their payload at hand, new records.

All of one call goes out as one column batch: its offsets are told by their distance from the
first one in 32 bits, and it has one type of timestamps. So a call ends where either would not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from sharecoord.core.acquire import Run
from sharecoord.core.limits import ACQUIRE_RECORDS_MAX
from sharecoord.core.parked import ParkedOffsets
from sharecoord.core.range_map import uncovered
from sharecoord.core.records import RecordChunk
from sharecoord.core.share_partition import SharePartition
from sharecoord.core.states import Ordering
from sharecoord.core.window import Keys, RangeState
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.record_cache import RecordCache, runs_in

BATCH_SPAN_MAX = 2**32
"""Offsets from the first to the last of a batch; only a compacted topic comes near."""

DUE_LOOKAHEAD_RECORDS = 2_000
"""So many due records are looked at for payloads that must be read again."""

LIFELINE_RECORDS = 100
"""So many due records still go out while the memory limit stops acquiring, and only where nothing
is under a lock: their acknowledgements are the only way in which their ranges can go."""

TOKENS_RESERVE = 100_000
"""With fewer lock tokens left than any acquire can use, the share-partition is claimed anew."""

DueRange = tuple[int, int, RangeState]


class _Batch:
    """Keeps a call to what one batch can hold."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._timestamp_type = 0

    def takes(self, chunk: RecordChunk, first: int, last: int) -> bool:
        """Whether these records of a chunk can go with what was taken before."""
        if self._first is None:
            self._first, self._timestamp_type = first, chunk.timestamp_type
        same = chunk.timestamp_type == self._timestamp_type
        return same and last - self._first < BATCH_SPAN_MAX


class Candidates(NamedTuple):
    """What may be acquired, and what was found out meanwhile."""

    due: list[DueRange]
    fresh: list[Run]
    gaps: list[tuple[int, int]]
    """Due offsets that are no longer in the log."""
    missing: tuple[int, int] | None
    """Due offsets whose payload must be read again."""
    stored: list[int]
    """Due offsets whose payload the store has, and the cache has not; some of them, in order."""


def candidates(
    partition: SharePartition,
    cache: RecordCache,
    clock: RuntimeClock,
    *,
    member_id: str,
    max_records: int,
    lookahead: int,
    with_fresh: bool,
) -> Candidates:
    """Looks for records for a member.

    Args:
        partition: The state.
        cache: The payloads.
        clock: For records that are to wait.
        member_id: Who will get them.
        max_records: How many are wanted; the last range may exceed it.
        lookahead: With how many due records one re-read may deal.
        with_fresh: Whether new records are wanted as well.
    """
    batch = _Batch()
    due: list[DueRange] = []
    gaps: list[tuple[int, int]] = []
    missing: tuple[int, int] | None = None
    stored: list[int] = []
    if partition.window.due:
        due, gaps, missing, kept = _readable_due(partition, cache, batch, member_id, max_records)
        if missing is not None:
            missing = _coalesced(partition, cache, member_id, missing[0], lookahead)
        if kept is not None:
            stored = _stored_due(partition, cache, member_id, kept, lookahead)
    fresh = _fresh_runs(partition, cache, clock, batch, max_records) if with_fresh else []
    return Candidates(due, fresh, gaps, missing, stored)


def _readable_due(
    partition: SharePartition, cache: RecordCache, batch: _Batch, member_id: str, max_records: int
) -> tuple[list[DueRange], list[tuple[int, int]], tuple[int, int] | None, int | None]:
    """Due ranges with their payload at hand, gaps, and what has it not.

    The last two are the first range that only the log has, and the first that the store has.
    """
    readable: list[DueRange] = []
    gaps: list[tuple[int, int]] = []
    missing: tuple[int, int] | None = None
    stored: int | None = None
    for first, last, value in partition.window.due_ranges(max_records, member_id):
        position = first
        while position <= last:
            chunk = cache.find(position)
            if chunk is None:
                stop = min(last, (cache.next_start(position) or last + 1) - 1)
                kept, unkept = _told_apart(partition.kept, position, stop)
                stored, missing = kept if stored is None else stored, missing or unkept
                position = stop + 1
                continue
            stop = min(last, chunk.last)
            for run in runs_in(chunk, position, stop):
                gaps += [(position, run[0] - 1)] * (run[0] > position)
                if not batch.takes(chunk, *run):
                    return readable, gaps, missing, stored
                readable.append((*run, value))
                position = run[1] + 1
            gaps += [(position, stop)] * (position <= stop)
            position = stop + 1
    return readable, gaps, missing, stored


def _told_apart(
    kept: ParkedOffsets, first: int, last: int
) -> tuple[int | None, tuple[int, int] | None]:
    """Of [first, last] the first offset whose payload is kept, and the first range without."""
    if not kept.records:
        return None, (first, last)
    runs = list(kept.runs(first, last))
    return runs[0][0] if runs else None, next(uncovered(runs, first, last), None)


def _stored_due(
    partition: SharePartition, cache: RecordCache, member_id: str, start: int, lookahead: int
) -> list[int]:
    """Due records from `start` on whose payload the store has, and the cache has not."""
    return [
        offset
        for first, last, _ in partition.window.due_ranges(lookahead, member_id)
        for run in partition.kept.runs(max(first, start), last)
        for offset in range(run[0], run[1] + 1)
        if cache.find(offset) is None
    ]


def _coalesced(
    partition: SharePartition, cache: RecordCache, member_id: str, start: int, lookahead: int
) -> tuple[int, int]:
    """One span from `start` on for all due records near it whose payload is not at hand."""
    end = start
    for first, last, _ in partition.window.due_ranges(lookahead, member_id):
        position = max(first, start)
        while position <= last and position - start < lookahead:
            chunk = cache.find(position)
            if chunk is None:
                stop = min(last, (cache.next_start(position) or last + 1) - 1)
                end = min(stop, start + lookahead - 1)
            else:
                stop = chunk.last
            position = stop + 1
    return start, end


def _fresh_runs(
    partition: SharePartition,
    cache: RecordCache,
    clock: RuntimeClock,
    batch: _Batch,
    max_records: int,
) -> list[Run]:
    """Runs of new records from the window's end on; those that wait are not among `max_records`."""
    end_offset = partition.window.end_offset
    by_key = partition.settings.ordering == Ordering.KEY
    blocked = partition.settings.blocked_keys
    runs: list[Run] = []
    records = waiting = 0
    for chunk in cache.after(end_offset):
        for first, last, at_ms in _by_time(chunk, chunk.runs(end_offset), clock):
            if not batch.takes(chunk, first, last):
                return runs
            keys = _keys_of(chunk, first, last) if by_key else None
            runs.append(Run(first, last, keys, at_ms))
            count = last - first + 1
            wait = count if at_ms else _blocked_in(keys, count, blocked)
            waiting += wait
            records += count - wait
            if records >= max_records or waiting >= ACQUIRE_RECORDS_MAX:
                return runs
    return runs


def _by_time(
    chunk: RecordChunk, runs: list[tuple[int, int]], clock: RuntimeClock
) -> Iterable[tuple[int, int, int]]:
    """Runs cut where the time changes before which records are not to be handed out (0: none)."""
    if not chunk.due_times:
        return ((first, last, 0) for first, last in runs)
    now_ms = clock.to_store(clock.now_ms())
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


def _blocked_in(keys: Keys | None, count: int, blocked: frozenset[int]) -> int:
    """How many records of a run have a blocked key."""
    if keys is None or not blocked:
        return 0
    return sum(key in blocked for key in struct.unpack(f">{count}Q", keys.hashes))


def _keys_of(chunk: RecordChunk, first: int, last: int) -> Keys:
    """The key hashes of a run."""
    start, stop = chunk.span(first, last)
    return Keys(first, chunk.key_hashes()[start * 8 : stop * 8])
