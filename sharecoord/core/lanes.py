"""What a redrive, a discard or a replay writes into a share-partition: decided here, purely.

A lane is a share-partition that reads a dead-letter topic for the members of another topic, and
that is bounded: letters that were selected are AVAILABLE ranges, all else in its window is
finished (docs/decisions/0019). So a redrive that comes on top of another one is a merge of ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from sharecoord.core.changes import (
    InFlightRow,
    KeptPayload,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.states import RecordState
from sharecoord.errors import InvalidRequestError

RATE_MAX: Final = 1_000_000
"""Records per second: more than a coordinator hands out."""

KEY_BYTES: Final = 8
"""Of one key's hash; see `core.records`."""


class MarkKind(StrEnum):
    """What was done with a letter."""

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
    """When, by the store's clock."""


class Run(NamedTuple):
    """Selected offsets, all from `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be taken in of one share-partition."""

    key: PartitionKey
    runs: tuple[Run, ...]
    """In order, disjoint, one at least."""
    keys: bytes | None = None
    """8 bytes per selected offset (`core.records.key_hashes_of`); None where no order is kept."""
    rate_limit: int = 0
    kept: tuple[KeptPayload, ...] = ()
    """What the dead-letter topic has the headers of alone: it is delivered from the store."""

    def kept_of(self, taken: Sequence[Run]) -> list[KeptPayload]:
        """Those of letters that are taken."""
        return [each for each in self.kept if any(a <= each.offset <= b for a, b in taken)]


class Order(NamedTuple):
    """How selections are to be taken in, all in one transaction."""

    kind: MarkKind
    run_id: str
    again: bool = False
    """Whether letters that bear a mark are taken as well."""


class Taken(NamedTuple):
    """What became of a selection."""

    key: PartitionKey
    taken: tuple[Run, ...]
    """What is marked from now on, and for a redrive will be handed out."""
    marked: int
    """Letters that were left out because they bear a mark."""
    under_way: int
    """Letters that were left out because an earlier redrive of them is not finished."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A share-partition that has a part of its log only: a time range, or single offsets."""

    key: PartitionKey
    start_offset: int
    stops_at: int
    runs: tuple[Run, ...] = ()
    """In order, disjoint, below `stops_at`; () = everything from `start_offset` on."""
    rate_limit: int = 0

    @property
    def records(self) -> int:
        """How many offsets it has."""
        return _count(self.runs) if self.runs else self.stops_at - self.start_offset

    def limited(self, rate_limit: int) -> Replayed:
        """The same at a rate."""
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
    """What is written for a selection."""

    head: PartitionHead
    stops_at: int
    taken: tuple[Run, ...]
    marked: int = 0
    under_way: int = 0
    deleted: list[int] = field(default_factory=list)
    upserted: list[InFlightRow] = field(default_factory=list)
    anew: bool = False
    """Whether the offsets begin another life (`PartitionRow.replay_epoch`): what was processed is
    to be processed again."""


def take_in(
    state: LaneState, selection: Selection, order: Order, change_sequence: int
) -> LaneChange:
    """Merges a selection into a lane.

    Ranges of an earlier redrive that are not finished stay as they are, with their locks; letters
    that bear a mark are left out unless the order says otherwise.

    Args:
        state: As it is stored.
        selection: What is selected.
        order: What is done with it.
        change_sequence: The last number of the share-partition.
    """
    unfinished = [row for row in state.rows if row.state != RecordState.ARCHIVED]
    wanted, asked = list(selection.runs), _count(selection.runs)
    if not order.again:
        wanted = without(wanted, (Run(mark.first_offset, mark.last_offset) for mark in state.marks))
    marked = asked - _count(wanted)
    taken = without(wanted, map(_run_of, unfinished))
    rows = _new_rows(selection, taken) if order.kind is MarkKind.REDRIVEN else []
    deleted, pieces = _cut(state.rows, taken) if rows else ([], [])
    written = {row.first_offset for row in rows + pieces}
    head = _head(state.head, rows, _count(map(_run_of, unfinished + rows)), change_sequence)
    return LaneChange(
        head=head,
        stops_at=head.end_offset,
        taken=tuple(taken),
        marked=marked,
        under_way=asked - marked - _count(taken),
        deleted=[first for first in deleted if first not in written],
        upserted=rows + pieces,
        # Not while others are under way: they would pass for what was never processed.
        anew=order.again and bool(rows) and not unfinished,
    )


def withdraw(state: LaneState, change_sequence: int) -> LaneChange:
    """Takes back what was selected and never handed out: `taken` of the change."""
    head = state.head
    assert head is not None, "a lane has a head"
    never = {row.first_offset for row in state.rows if _is_untouched(row)}
    left = [
        _run_of(row)
        for row in state.rows
        if row.first_offset not in never and row.state != RecordState.ARCHIVED
    ]
    if len(never) == len(state.rows):
        # Nothing is left of it: nobody needs to load it to find that out.
        head = replace(head, start_offset=head.end_offset)
    return LaneChange(
        head=_head(head, (), _count(left), change_sequence),
        stops_at=head.end_offset,
        taken=tuple(_run_of(row) for row in state.rows if row.first_offset in never),
        deleted=sorted(never),
    )


def unmarked(marks: Iterable[Mark], back: Iterable[Run]) -> list[Mark]:
    """The marks that are left when those of a redrive are taken from `back`."""
    runs = merged(back)
    return [
        mark._replace(first_offset=first, last_offset=last)
        for mark in marks
        for first, last in (
            without([Run(mark.first_offset, mark.last_offset)], runs)
            if mark.kind == MarkKind.REDRIVEN
            else [Run(mark.first_offset, mark.last_offset)]
        )
    ]


def hinders_replay(row: PartitionRow) -> bool:
    """Whether a group with this share-partition is no place for a replay.

    What was never used is none's (a row that has just been made), and a replay that is finished.
    """
    if row.head is None or row.closed:
        return False
    return row.stops_at is None or bool(row.key.lane) or row.is_open


def replay(part: Replayed, change_sequence: int) -> LaneChange:
    """A bounded share-partition as it begins."""
    rows: list[InFlightRow] = []
    start = end = part.start_offset
    if part.runs:
        rows = [_available(first, last, None) for first, last in part.runs]
        start, end = part.runs[0].first, part.stops_at
    left = _count(map(_run_of, rows))
    head = PartitionHead(start, end, -1, end - start - left, change_sequence + 1)
    return LaneChange(head, part.stops_at, (), upserted=rows, anew=True)


def divided(rate_per_s: int, counts: Sequence[int]) -> list[int]:
    """A rate in proportion to how many records each of some share-partitions has.

    Args:
        rate_per_s: Of all together; 0 = no limit.
        counts: Those with no record need no rate; each other one gets 1 at least.

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


def without(runs: Iterable[Run], taken: Iterable[Run]) -> list[Run]:
    """What is in `runs` (in order, disjoint) and not in `taken` (any order, overlaps allowed)."""
    left: list[Run] = []
    others = merged(taken)
    at = 0
    for first, last in runs:
        position = first
        while at < len(others) and others[at].last < first:
            at += 1
        look = at
        while look < len(others) and others[look].first <= last:
            if others[look].first > position:
                left.append(Run(position, others[look].first - 1))
            position = others[look].last + 1
            look += 1
        if position <= last:
            left.append(Run(position, last))
    return left


def merged(runs: Iterable[Run]) -> list[Run]:
    """The same offsets in order, as few disjoint runs."""
    found: list[Run] = []
    for first, last in sorted(runs):
        if found and first <= found[-1].last + 1:
            found[-1] = Run(found[-1].first, max(last, found[-1].last))
        else:
            found.append(Run(first, last))
    return found


def _count(runs: Iterable[Run]) -> int:
    return sum(last - first + 1 for first, last in runs)


def _run_of(row: InFlightRow) -> Run:
    return Run(row.first_offset, row.last_offset)


def _is_untouched(row: InFlightRow) -> bool:
    return row.state == RecordState.AVAILABLE and not row.hand_outs and not row.lock_token


def _new_rows(selection: Selection, taken: Iterable[Run]) -> list[InFlightRow]:
    """Selected ranges as they wait for their first delivery."""
    rows: list[InFlightRow] = []
    runs, before = iter(selection.runs), 0
    run = next(runs)
    for first, last in taken:
        while run.last < first:
            before += run.last - run.first + 1
            run = next(runs)
        keys = None
        if selection.keys is not None:
            start = (before + first - run.first) * KEY_BYTES
            keys = selection.keys[start : start + (last - first + 1) * KEY_BYTES]
        rows.append(_available(first, last, keys))
    return rows


def _available(first: int, last: int, keys: bytes | None) -> InFlightRow:
    return InFlightRow(
        first_offset=first,
        last_offset=last,
        state=int(RecordState.AVAILABLE),
        delivery_count=0,
        hand_outs=0,
        member_id=None,
        lock_token=0,
        deadline_ms=0,
        granted_ms=0,
        available_at_ms=0,
        batch_base=first,
        batch_size=last - first + 1,
        reason=None,
        key_hashes=keys,
    )


def _cut(rows: Sequence[InFlightRow], taken: Sequence[Run]) -> tuple[list[int], list[InFlightRow]]:
    """What becomes of archived ranges in which something is taken in again."""
    deleted: list[int] = []
    pieces: list[InFlightRow] = []
    for row in rows:
        if row.state != RecordState.ARCHIVED:
            continue
        rest = without([_run_of(row)], taken)
        if rest == [_run_of(row)]:
            continue
        deleted.append(row.first_offset)
        for first, last in rest:
            start, stop = first - row.first_offset, last - row.first_offset + 1
            keys = row.key_hashes
            cut = None if keys is None else keys[start * KEY_BYTES : stop * KEY_BYTES]
            pieces.append(row._replace(first_offset=first, last_offset=last, key_hashes=cut))
    return deleted, pieces


def _head(
    head: PartitionHead | None, rows: Sequence[InFlightRow], left: int, change_sequence: int
) -> PartitionHead:
    """The window with the new ranges in it; `left` records of it are not finished."""
    start, end = (0, 0) if head is None else (head.start_offset, head.end_offset)
    if rows:
        lowest, highest = rows[0].first_offset, rows[-1].last_offset
        start = lowest if start == end else min(start, lowest)
        end = max(end, highest + 1)
    return PartitionHead(start, end, -1, end - start - left, change_sequence + 1)
