"""The in-flight window of one share-partition, in memory: ranges, counts, and unstored changes.

`Window.apply` alone carries out decisions. An offset inside [start_offset, end_offset) that no
range covers, and that is not parked, is finished: ACKNOWLEDGED, or a proven gap. Times are
milliseconds of this process's monotonic clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sharecoord.core.counts import add_to
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.states import LEGAL_MOVES, RecordState
from sharecoord.core.window.range_map import RangeMap
from sharecoord.core.window.range_state import Edit, Keys, Range, RangeState, WindowFollower

__all__ = ["NEVER_MS", "Edit", "Grant", "Keys", "Range", "RangeState", "Window"]

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED

_MAY_FINISH = tuple(s for s, moves in LEGAL_MOVES.items() if RecordState.ACKNOWLEDGED in moves)
"""States that an edit without a value may end; a tuple, which is searched without hashing."""


class Grant:
    """The holder of one lock token. Ranges with this token lie in [first, last]."""

    __slots__ = ("first", "last", "member_id", "remaining")

    def __init__(self, member_id: str, first: int, last: int) -> None:
        self.member_id = member_id
        self.first = first
        self.last = last
        self.remaining = 0


NEVER_MS = 1 << 62
"""A time that never comes."""

INDEX_ENTRIES_MIN = 4_096
"""Heaps with fewer entries keep those that are out of date."""


class Window:
    """Ranges of unfinished (and archived) records from SPSO to SPEO."""

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self.ranges: RangeMap[RangeState] = RangeMap()
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.acquired = 0
        self.due = 0
        self.delayed = 0
        """Parked records included."""
        self.archiving = 0
        self.archived = 0
        self.grants: dict[int, Grant] = {}
        self.grants_of: dict[str, set[int]] = {}
        self.held: dict[str, int] = {}
        self._totals: dict[str, int] = {}
        """The same counts over all windows that count together."""
        self._freed: dict[str, None] = {}
        self.dirty: dict[int, tuple[int, RangeState] | None] = {}
        self.parked = OffsetSet()
        """Delayed records that are in the store alone; groups with order park none."""
        self.parked_from_ms = NEVER_MS
        """No parked record is due earlier."""
        self._truncated_at: int | None = None
        self._due_until_ms = 0
        self._due_heap: list[int] = []
        self._delayed_heap: list[tuple[int, int]] = []
        self._deadline_heap: list[tuple[int, int, int]] = []
        self._index_entries_max = INDEX_ENTRIES_MIN
        self._index_room = INDEX_ENTRIES_MIN
        self.follower: WindowFollower | None = None
        """Keeps the order of keys; None in groups without order."""

    # -- reading --------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """Records in the window that are not in a final state."""
        return self.acquired + self.due + self.delayed + self.archiving

    @property
    def finished(self) -> int:
        """Final offsets inside [start_offset, end_offset)."""
        return self.end_offset - self.start_offset - self.unfinished

    @property
    def done(self) -> int:
        """Number of records that became final or wait as dead letters; a truncation lowers it."""
        return self.end_offset - self.acquired - self.due - self.delayed

    def is_delayed(self, value: RangeState) -> bool:
        """Whether an AVAILABLE range waits for its time."""
        return value.available_at_ms > self._due_until_ms

    def next_deadline_ms(self) -> int | None:
        """The earliest time at which a lock may end, or None. May be early, never late."""
        return self._deadline_heap[0][0] if self._deadline_heap else None

    def next_due_ms(self) -> int | None:
        """The earliest time at which a delayed record becomes due, or None."""
        return self._delayed_heap[0][0] if self._delayed_heap else None

    def due_ranges(self, records_max: int) -> list[Range]:
        """Ranges that are due, lowest offset first, until `records_max` is reached.

        The last range is given whole, so the sum may exceed `records_max`.
        """
        if not self.due:
            self._due_heap.clear()
            return []
        heap, found_ranges, records, seen = self._due_heap, [], 0, -1
        while heap and records < records_max:
            offset = heapq.heappop(heap)
            found = self.ranges.get(offset) if offset > seen else None
            if found is None or found[2].state is not AVAILABLE or self.is_delayed(found[2]):
                continue
            seen = found[1]
            records += seen - found[0] + 1
            found_ranges.append(found)
        for found in found_ranges:
            heapq.heappush(heap, found[0])
        return found_ranges

    def expired(self, now_ms: int) -> list[Edit]:
        """The ACQUIRED pieces whose lock has ended, as (first, last, present value)."""
        ended: list[Edit] = []
        heap = self._deadline_heap
        while heap and heap[0][0] <= now_ms:
            _, first, last = heapq.heappop(heap)
            ended.extend(
                Edit(start, end, value)
                for start, end, value in self.ranges.overlapping(first, last)
                if value.state is ACQUIRED and value.deadline_ms <= now_ms
            )
        if len(ended) > 1:
            ended = sorted({e.first: e for e in ended}.values())
        return ended

    def held_by(self, member_id: str) -> Iterator[Range]:
        """The ranges that a member holds, grant by grant."""
        for token in sorted(self.grants_of.get(member_id, ())):
            grant = self.grants[token]
            for first, last, value in self.ranges.overlapping(grant.first, grant.last):
                if value.lock_token == token and value.state is ACQUIRED:
                    yield first, last, value

    def count_into(self, totals: dict[str, int] | None) -> None:
        """Counts what members hold into `totals`, no more into the dict before; None = alone."""
        for member_id, records in self.held.items():
            add_to(self._totals, member_id, -records)
        self._totals = {} if totals is None else totals
        for member_id, records in self.held.items():
            add_to(self._totals, member_id, records)

    # -- changing -------------------------------------------------------------------------------

    def take_truncation(self) -> int | None:
        """The lowest offset at which the log was cut since the last call; None = it was not."""
        offset, self._truncated_at = self._truncated_at, None
        return offset

    def take_freed(self) -> Iterable[str]:
        """The members that hold fewer records than at the last call, in order of the changes."""
        freed, self._freed = self._freed, {}
        return freed

    def advance(self, now_ms: int) -> int:
        """Makes delayed records due whose time has come; returns how many."""
        before = self.due
        if now_ms > self._due_until_ms:
            became_due: list[Range] = []
            heap = self._delayed_heap
            entry, before_it = (-1, -1), (-1, -1)
            while heap and heap[0][0] <= now_ms:
                entry, before_it = heapq.heappop(heap), entry
                first = entry[1]
                found = self.ranges.get(first)
                # An entry is there twice when a truncated offset was delayed again.
                if entry != before_it and found and self._is_waiting(found, entry):
                    size = found[1] - first + 1
                    self.delayed -= size
                    self.due += size
                    heapq.heappush(self._due_heap, first)
                    became_due.append(found)
            self._due_until_ms = now_ms
            if self.follower is not None and became_due:
                for found in became_due:
                    self.follower.became_due(*found)
                self.follower.settle()
        return self.due - before

    def apply(self, edits: Sequence[Edit], end_offset: int | None = None) -> None:
        """Carries out edits (ascending, disjoint), then moves the start offset.

        `end_offset` is the new end of the window, at or beyond the present one.
        """
        if end_offset is not None:
            assert end_offset >= self.end_offset, "the end of a window moved back"
            self.end_offset = end_offset
        follower = self.follower
        if follower is not None:
            follower.note(edits)
        at, count = 0, len(edits)
        while at < count:
            at = self._apply_in_range(edits, at)
        self._advance_start()
        if follower is not None:
            follower.settle()
        self._index_room -= count
        if self._index_room < 0:
            self._check_index_size()

    def _apply_in_range(self, edits: Sequence[Edit], at: int) -> int:
        """Applies the edits from `at` on that lie in one existing range; returns the next index."""
        first, last, value = edits[at]
        found = self.ranges.get(first)
        if found is None:
            if value is not None:
                self.ranges.insert(first, last, value)
                self._enter(first, last, value)
                self.dirty[first] = (last, value)
            return at + 1
        old_first, old_last, old = found
        pieces: list[Range] = []
        position, moved, may_finish = old_first, 0, old.state in _MAY_FINISH
        while at < len(edits) and edits[at].first <= old_last:
            first, last, value = edits[at]
            assert position <= first <= last <= old_last, "an edit crosses a range"
            at += 1
            if value == old:
                continue
            if first > position:
                pieces.append((position, first - 1, old))
            if value is None:
                assert may_finish, f"illegal move {old.state!r} -> ACKNOWLEDGED"
            else:
                assert value.state in LEGAL_MOVES[old.state], (
                    f"illegal move {old.state!r} -> {value.state!r}"
                )
                self._add_piece(pieces, first, last, value)
            moved += last - first + 1
            position = last + 1
        if position <= old_last:
            pieces.append((position, old_last, old))
        self._leave(old, moved)
        self.dirty[old_first] = None
        for piece in pieces:
            self.dirty[piece[0]] = piece[1:]
            if piece[2] is not old:
                self._enter(*piece)
            elif old.state is AVAILABLE and piece[0] != old_first:
                self._index_available(piece[0], old)
        if pieces and pieces[0][0] == old_first and pieces[0][2] is not old:
            self._join_left(old_first, pieces)
        else:
            self.ranges.replace(old_first, pieces)
        return at

    def _join_left(self, old_first: int, pieces: list[Range]) -> None:
        """Replaces the range at `old_first`, its first piece joined to an equal left neighbour."""
        _, last, value = pieces[0]
        left = self.ranges.get(old_first - 1)
        if left is None or left[2] != value:
            self.ranges.replace(old_first, pieces)
            return
        self.dirty[old_first] = None
        self.dirty[left[0]] = (last, value)
        self.ranges.replace(old_first, pieces[1:])
        self.ranges.replace(left[0], ((left[0], last, value),))

    @staticmethod
    def _add_piece(pieces: list[Range], first: int, last: int, value: RangeState) -> None:
        """Appends a piece, joined with its left neighbour when nothing tells them apart."""
        if pieces:
            before_first, before_last, before = pieces[-1]
            if before_last + 1 == first and before == value:
                pieces[-1] = (before_first, last, before)
                return
        pieces.append((first, last, value))

    def _leave(self, old: RangeState, size: int) -> None:
        """Takes `size` records in state `old` out of the counts."""
        if old.state is ACQUIRED:
            self.acquired -= size
            self._drop_held(old, size)
        elif old.state is AVAILABLE:
            if self.is_delayed(old):
                self.delayed -= size
            else:
                self.due -= size
        elif old.state is ARCHIVING:
            self.archiving -= size
        else:
            self.archived -= size

    def _drop_held(self, old: RangeState, size: int) -> None:
        token, member_id = old.lock_token, old.member_id
        assert member_id is not None, "an acquired range has a holder"
        grant = self.grants[token]
        grant.remaining -= size
        if not grant.remaining:
            del self.grants[token]
            self.grants_of[member_id].discard(token)
        self._freed[member_id] = None
        add_to(self._totals, member_id, -size)
        if not add_to(self.held, member_id, -size):
            del self.grants_of[member_id]

    def _enter(self, first: int, last: int, value: RangeState) -> None:
        """Puts a piece into the counts and indexes."""
        self._count(first, last, last - first + 1, value)
        if value.state is ACQUIRED:
            heapq.heappush(self._deadline_heap, (value.deadline_ms, first, last))
        elif value.state is AVAILABLE:
            self._index_available(first, value)

    def _count(self, first: int, last: int, records: int, value: RangeState) -> None:
        """Adds records in [first, last] that have one state to the counts."""
        if value.state is ACQUIRED:
            self.acquired += records
            self._add_held(first, last, records, value)
        elif value.state is AVAILABLE:
            if self.is_delayed(value):
                self.delayed += records
            else:
                self.due += records
        elif value.state is ARCHIVING:
            self.archiving += records
        else:
            self.archived += records

    def _add_held(self, first: int, last: int, records: int, value: RangeState) -> None:
        member_id = value.member_id
        assert member_id is not None, "an acquired range has a holder"
        grant = self.grants.get(value.lock_token)
        if grant is None:
            grant = self.grants[value.lock_token] = Grant(member_id, first, last)
            self.grants_of.setdefault(member_id, set()).add(value.lock_token)
        else:
            grant.first = min(grant.first, first)
            grant.last = max(grant.last, last)
        grant.remaining += records
        add_to(self._totals, member_id, records)
        add_to(self.held, member_id, records)

    def _index_available(self, first: int, value: RangeState) -> None:
        if self.is_delayed(value):
            heapq.heappush(self._delayed_heap, (value.available_at_ms, first))
        else:
            heapq.heappush(self._due_heap, first)

    def _advance_start(self) -> None:
        """Moves the start offset over everything final (KIP-932; specification 1.4)."""
        end = self.parked.lowest if self.parked.records else None
        if end is None:
            end = self.end_offset
        front = self.ranges.front()
        while front is not None and front[2].state is ARCHIVED and front[0] < end:
            first, last, _ = front
            self.archived -= last - first + 1
            self.ranges.replace(first, ())
            self.dirty[first] = None
            front = self.ranges.front()
        start = end if front is None or front[0] > end else front[0]
        assert start >= self.start_offset, "the start offset moved back"
        self.start_offset = start

    # -- what the store keeps ---------------------------------------------------------------------

    @property
    def delayed_ranges(self) -> int:
        """How many ranges in memory wait for their time; entries out of date count too."""
        return len(self._delayed_heap)

    def park(self, kept: int) -> None:
        """Leaves the ranges that are due last to the store; not in groups with order.

        The `kept` delayed ranges that are due first stay, and dirty ones. Ranges taken from `dirty`
        must be stored by now: then a range that is not dirty is as the store has it.
        """
        assert self.follower is None, "order is kept by keys that are in memory"
        entries = sorted(set(self._delayed_heap))
        stay: list[tuple[int, int]] = []
        for entry in entries:
            at_ms, first = entry
            found = self.ranges.get(first)
            if found is None or not self._is_waiting(found, entry):
                continue
            if len(stay) < kept or first in self.dirty:
                stay.append(entry)
                continue
            self.ranges.replace(first, ())
            self.parked.add(first, found[1])
            self.parked_from_ms = min(self.parked_from_ms, at_ms)
        self._delayed_heap = stay

    def unpark(
        self,
        firsts: Sequence[int],
        lasts: Sequence[int],
        values: Sequence[RangeState],
        from_ms: int,
    ) -> None:
        """Takes back stored ranges, given as columns; ranges that are not parked are left out.

        No range that is still parked is due before `from_ms`.
        """
        for first, last, value in zip(firsts, lasts, values, strict=True):
            if not self.parked.covers(first, last):
                continue
            size = self.parked.discard(first, last)
            self.ranges.insert(first, last, value)
            self._index_available(first, value)
            if not self.is_delayed(value):
                self.delayed -= size
                self.due += size
        self.parked_from_ms = from_ms if self.parked.records else NEVER_MS

    def _is_waiting(self, found: Range, entry: tuple[int, int]) -> bool:
        """Whether an entry of the heap of delayed ranges is up to date."""
        first, _, value = found
        return (
            (value.available_at_ms, first) == entry
            and value.state is AVAILABLE
            and self.is_delayed(value)
        )

    def truncate(self, offset: int) -> None:
        """Drops everything from `offset` on, locks included; the end moves back to it.

        The one way in which the end, and with it the start, of a window moves back.
        """
        follower = self.follower
        for first, last, value in [*self.ranges.overlapping(offset, self.end_offset)]:
            kept = max(first, offset)
            if follower is not None:
                follower.drop(kept, last, value)
            self._leave(value, last - kept + 1)
            if kept == first:
                self.ranges.replace(first, ())
                self.dirty[first] = None
            else:
                self.ranges.replace(first, ((first, offset - 1, value),))
                self.dirty[first] = (offset - 1, value)
        parked = self.parked.discard(offset, self.end_offset)
        if parked:
            # Their rows are not known one by one: the commit says where the log was cut.
            self.delayed -= parked
            self.parked_from_ms = self.parked_from_ms if self.parked.records else NEVER_MS
        if self._truncated_at is None or offset < self._truncated_at:
            self._truncated_at = offset
        self.end_offset = min(self.end_offset, offset)
        self.start_offset = min(self.start_offset, offset)
        self._advance_start()
        if follower is not None:
            follower.settle()

    def _check_index_size(self) -> None:
        """Rebuilds the heaps when most of their entries are out of date."""
        self._index_room = INDEX_ENTRIES_MIN
        entries = len(self._deadline_heap) + len(self._due_heap) + len(self._delayed_heap)
        if entries > self._index_entries_max:
            self._rebuild_indexes()

    def _rebuild_indexes(self) -> None:
        """Drops entries that are out of date, so that ranges bound the memory of the heaps."""
        self._index(
            [
                (value.deadline_ms, first, last)
                for first, last, value in self.ranges
                if value.state is ACQUIRED
            ],
            [(first, value) for first, _, value in self.ranges if value.state is AVAILABLE],
        )

    def _index(
        self, deadlines: list[tuple[int, int, int]], available: list[tuple[int, RangeState]]
    ) -> None:
        """Makes the heaps anew, of (deadline, first, last) and of (first, value)."""
        self._deadline_heap = deadlines
        self._due_heap = [first for first, value in available if not self.is_delayed(value)]
        self._delayed_heap = [
            (value.available_at_ms, first) for first, value in available if self.is_delayed(value)
        ]
        heapq.heapify(self._deadline_heap)
        heapq.heapify(self._delayed_heap)
        entries = len(self._deadline_heap) + len(available)
        self._index_entries_max = max(INDEX_ENTRIES_MIN, 2 * entries)

    def index_entries(
        self,
    ) -> tuple[Sequence[int], Sequence[tuple[int, int]], Sequence[tuple[int, int, int]]]:
        """The heaps of due offsets, (time, offset) and (deadline, first, last); for checks."""
        return self._due_heap, self._delayed_heap, self._deadline_heap

    def load(
        self,
        firsts: Sequence[int],
        lasts: Sequence[int],
        values: Sequence[RangeState],
        parked: OffsetSet | None = None,
        parked_from_ms: int = NEVER_MS,
    ) -> None:
        """Fills an empty window with stored ranges, given as columns, in order of offset.

        Only ARCHIVED rows at the front become dirty: no live window has any, so the next commit
        deletes them. `parked` ranges stay in the store alone, none due before `parked_from_ms`.
        """
        if parked is not None and parked.records:
            self.parked, self.parked_from_ms = parked, parked_from_ms
            self.delayed += parked.records
        self.ranges.fill(firsts, lasts, values)
        # Ranges that were cut from one batch share their value: counted together, and under one
        # deadline, which finds them among their neighbours.
        spans: dict[int, list[Any]] = {}
        for first, last, value in zip(firsts, lasts, values, strict=True):
            span = spans.get(id(value))
            if span is None:
                spans[id(value)] = [first, last, last - first + 1, value]
            else:
                span[1] = last
                span[2] += last - first + 1
        deadlines: list[tuple[int, int, int]] = []
        for start, last, records, value in spans.values():
            self._count(start, last, records, value)
            if value.state is ACQUIRED:
                deadlines.append((value.deadline_ms, start, last))
        pairs = zip(firsts, values, strict=True)
        self._index(deadlines, [(n, value) for n, value in pairs if value.state is AVAILABLE])
        self._advance_start()
