"""Changes of lanes and replays: redrive, discard, withdrawal, and the start of a replay.

A lane is a bounded share-partition that reads a dead-letter topic for the members of another topic:
selected letters are AVAILABLE ranges, all else in its window is finished (docs/decisions/0019). So
a redrive on top of another redrive is a merge of ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from sharecoord.core.changes import (
    InFlightRow,
    KeptPayload,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.records import KEY_HASH_BYTES
from sharecoord.core.spans import Span, count, covers, difference, union
from sharecoord.core.states import RecordState
from sharecoord.errors import InvalidRequestError

RATE_MAX: Final = 1_000_000
"""Highest rate in records per second: more than a coordinator hands out."""


class MarkKind(StrEnum):
    """A redrive or a discard of a letter by an operator."""

    REDRIVEN = "redriven"
    DISCARDED = "discarded"


class Mark(NamedTuple):
    """The trace of a redrive or a discard: a row of table `letter_mark`."""

    first_offset: int
    last_offset: int
    """Inclusive."""
    kind: str
    run_id: str
    at_ms: int
    """The store's clock at the redrive or discard."""


class MarkReader:
    """The marks of one partition, read in order of offset, so that each mark is read once."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._ahead = sorted(marks, reverse=True)
        self._covering: list[tuple[int, int, Mark]] = []
        """A heap, the newest mark first; some may end before the present offset."""
        self._number = 0

    def at(self, offset: int) -> Mark | None:
        """The newest mark of a letter; `offset` never goes back."""
        while self._ahead and self._ahead[-1].first_offset <= offset:
            mark = self._ahead.pop()
            self._number += 1
            heappush(self._covering, (-mark.at_ms, -self._number, mark))
        while self._covering and self._covering[0][2].last_offset < offset:
            heappop(self._covering)
        return self._covering[0][2] if self._covering else None


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that one lane is to take in."""

    key: PartitionKey
    spans: tuple[Span, ...]
    """In order, disjoint, one at least."""
    keys: bytes | None = None
    """8 bytes per selected offset (`core.records.key_hashes_of`); None where no order is kept."""
    rate_limit: int = 0
    kept: tuple[KeptPayload, ...] = ()
    """Letters without payload in the dead-letter topic: they are delivered from the store."""

    def kept_of(self, taken: Sequence[Span]) -> list[KeptPayload]:
        """The kept payloads of the letters that are taken."""
        return [each for each in self.kept if covers(taken, each.offset)]


class Marking(NamedTuple):
    """Which mark selected letters get, all in one transaction."""

    kind: MarkKind
    run_id: str
    again: bool = False
    """Whether letters that bear a mark already are taken too."""


class SelectionResult(NamedTuple):
    """The outcome of one selection."""

    key: PartitionKey
    taken: tuple[Span, ...]
    """The letters that get the mark, and with a redrive are handed out."""
    marked: int
    """Letters that were left out because they bear a mark already."""
    under_way: int
    """Letters that were left out because an earlier redrive of them is not finished."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A share-partition of a replay: it hands out a part of its log only, by time or by offsets."""

    key: PartitionKey
    start_offset: int
    stops_at: int
    spans: tuple[Span, ...] = ()
    """In order, disjoint, below `stops_at`; () = everything from `start_offset` on."""
    rate_limit: int = 0

    @property
    def records(self) -> int:
        """How many offsets the replay has."""
        return count(self.spans) if self.spans else self.stops_at - self.start_offset

    def limited(self, rate_limit: int) -> Replayed:
        """The same replay at a rate."""
        return replace(self, rate_limit=rate_limit)


@dataclass(frozen=True, slots=True)
class LaneState:
    """A lane as it is stored."""

    head: PartitionHead | None
    rows: Sequence[InFlightRow]
    """In order of offset."""
    marks: Sequence[Mark]


@dataclass(slots=True)
class LaneChange:
    """The rows that the store writes into a lane, or into a share-partition of a replay."""

    head: PartitionHead
    stops_at: int
    taken: tuple[Span, ...]
    marked: int = 0
    under_way: int = 0
    deleted: list[int] = field(default_factory=list)
    upserted: list[InFlightRow] = field(default_factory=list)
    anew: bool = False
    """Whether `PartitionRow.replay_epoch` rises: processed records are to be processed again."""


def take_in(
    state: LaneState, selection: Selection, marking: Marking, change_sequence: int
) -> LaneChange:
    """Merges a selection into a lane.

    Ranges of an earlier redrive that are not finished stay as they are, with their locks; letters
    that bear a mark are left out unless `marking` says otherwise. `change_sequence` is the last
    number of the share-partition.
    """
    unfinished = [row for row in state.rows if row.state != RecordState.ARCHIVED]
    wanted, asked = list(selection.spans), count(selection.spans)
    if not marking.again:
        marked_before = union((mark.first_offset, mark.last_offset) for mark in state.marks)
        wanted = difference(wanted, marked_before)
    marked = asked - count(wanted)
    taken = difference(wanted, list(map(_span_of, unfinished)))
    rows = _new_rows(selection, taken) if marking.kind is MarkKind.REDRIVEN else []
    deleted, pieces = _cut(state.rows, taken) if rows else ([], [])
    written = {row.first_offset for row in rows + pieces}
    head = _head(state.head, rows, count(map(_span_of, unfinished + rows)), change_sequence)
    return LaneChange(
        head=head,
        stops_at=head.end_offset,
        taken=tuple(taken),
        marked=marked,
        under_way=asked - marked - count(taken),
        deleted=[first for first in deleted if first not in written],
        upserted=rows + pieces,
        # Letters under way would pass for letters that were never processed.
        anew=marking.again and bool(rows) and not unfinished,
    )


def withdraw(state: LaneState, change_sequence: int) -> LaneChange:
    """Takes back the letters that were never handed out: `taken` of the change."""
    head = state.head
    assert head is not None, "a lane has a head"
    never = {
        row.first_offset
        for row in state.rows
        if row.state == RecordState.AVAILABLE and not row.hand_outs and not row.lock_token
    }
    left = [
        _span_of(row)
        for row in state.rows
        if row.first_offset not in never and row.state != RecordState.ARCHIVED
    ]
    if len(never) == len(state.rows):
        # An empty lane that ends where it starts is never loaded.
        head = replace(head, start_offset=head.end_offset)
    return LaneChange(
        head=_head(head, (), count(left), change_sequence),
        stops_at=head.end_offset,
        taken=tuple(_span_of(row) for row in state.rows if row.first_offset in never),
        deleted=sorted(never),
    )


def unmarked(marks: Iterable[Mark], back: Iterable[Span]) -> list[Mark]:
    """The marks that are left when letters in `back` lose the mark of their redrive."""
    taken = union(back)
    return [
        mark._replace(first_offset=first, last_offset=last)
        for mark in marks
        for first, last in difference(
            [(mark.first_offset, mark.last_offset)],
            taken if mark.kind == MarkKind.REDRIVEN else (),
        )
    ]


def hinders_replay(row: PartitionRow) -> bool:
    """Whether a group with this share-partition is no place for a replay.

    A row that was never used and a finished replay do not hinder one.
    """
    if row.head is None or row.closed:
        return False
    return row.stops_at is None or bool(row.key.lane) or row.is_open


def replay(part: Replayed, change_sequence: int) -> LaneChange:
    """The start of a bounded share-partition."""
    rows: list[InFlightRow] = []
    start = end = part.start_offset
    if part.spans:
        rows = [_available(first, last, None) for first, last in part.spans]
        start, end = part.spans[0][0], part.stops_at
    left = count(map(_span_of, rows))
    head = PartitionHead(start, end, -1, end - start - left, change_sequence + 1)
    return LaneChange(head, part.stops_at, (), upserted=rows, anew=True)


def divided(rate_per_s: int, counts: Sequence[int]) -> list[int]:
    """Divides a rate among share-partitions in proportion to their records; 0 = no limit.

    A share-partition with records gets 1 at least, one without records gets 0.

    Raises:
        InvalidRequestError: The rate is out of bounds, or too small to be divided.
    """
    if not 0 <= rate_per_s <= RATE_MAX:
        raise InvalidRequestError(f"rate_per_s is {rate_per_s}; 1 to {RATE_MAX}, or 0 for any")
    if not rate_per_s:
        return [0] * len(counts)
    served = [at for at, count in enumerate(counts) if count]
    if rate_per_s < len(served):
        raise InvalidRequestError(
            f"rate_per_s is {rate_per_s}, and {len(served)} partitions have records: at least 1 "
            "for each, so raise it or select less"
        )
    total, spread = sum(counts), rate_per_s - len(served)
    left = spread
    rates = [1 if count else 0 for count in counts]
    for at in sorted(served, key=lambda at: -counts[at]):
        more = min(left, -(-spread * counts[at] // total))
        rates[at] += more
        left -= more
    return rates


def _span_of(row: InFlightRow) -> Span:
    return row.first_offset, row.last_offset


def _new_rows(selection: Selection, taken: Iterable[Span]) -> list[InFlightRow]:
    """Rows of selected letters that wait for their first delivery."""
    rows: list[InFlightRow] = []
    spans, before = iter(selection.spans), 0
    start, end = next(spans)
    for first, last in taken:
        while end < first:
            before += end - start + 1
            start, end = next(spans)
        keys = None
        if selection.keys is not None:
            at = (before + first - start) * KEY_HASH_BYTES
            keys = selection.keys[at : at + (last - first + 1) * KEY_HASH_BYTES]
        rows.append(_available(first, last, keys))
    return rows


def _available(first: int, last: int, keys: bytes | None) -> InFlightRow:
    return InFlightRow(
        first,
        last,
        int(RecordState.AVAILABLE),
        batch_base=first,
        batch_size=last - first + 1,
        key_hashes=keys,
    )


def _cut(rows: Sequence[InFlightRow], taken: Sequence[Span]) -> tuple[list[int], list[InFlightRow]]:
    """First offsets of archived rows with letters that are taken in again, and their rests."""
    deleted: list[int] = []
    pieces: list[InFlightRow] = []
    for row in rows:
        if row.state != RecordState.ARCHIVED:
            continue
        rest = difference([_span_of(row)], taken)
        if rest == [_span_of(row)]:
            continue
        deleted.append(row.first_offset)
        for first, last in rest:
            start, stop = first - row.first_offset, last - row.first_offset + 1
            keys = row.key_hashes
            cut = None if keys is None else keys[start * KEY_HASH_BYTES : stop * KEY_HASH_BYTES]
            pieces.append(row._replace(first_offset=first, last_offset=last, key_hashes=cut))
    return deleted, pieces


def _head(
    head: PartitionHead | None, rows: Sequence[InFlightRow], left: int, change_sequence: int
) -> PartitionHead:
    """The head of a window with new rows, in which `left` records are not finished."""
    start, end = (0, 0) if head is None else (head.start_offset, head.end_offset)
    if rows:
        lowest, highest = rows[0].first_offset, rows[-1].last_offset
        start = lowest if start == end else min(start, lowest)
        end = max(end, highest + 1)
    return PartitionHead(start, end, -1, end - start - left, change_sequence + 1)
