"""The lock book of a consumer: records that wait, that the application has, and renewed ones."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .acks import ACCEPT, RENEW, RETURN, AckRange
from .columns import (
    IN_FLIGHT,
    LOST,
    LOST_ACKNOWLEDGED,
    NO_DETAILS,
    RENEWED,
    RENEWING,
    SETTLED,
    Columns,
    HandOut,
    PartitionKey,
    Span,
    joined,
)
from .credit import StreamCredit
from .held import merged, one_range_per_lock, split_by_room
from .order import Turns

_FAILED_RETURN_S: Final = 300.0
"""How long after the end of its lock a record that is not back stops what follows it. The
coordinator tells within seconds, or its successor does; no key may stand still for ever."""


class LockBook:
    """The records under lock of one consumer.

    Invariant: a row is in at most one of `_buffer`, `_hand_outs`, `in_flight` and `_renewed`, and
    `credit` counts exactly what is in `_buffer`. Only what is in `in_flight` can be accepted.
    """

    #: A record that still waits when this part of its lock is left goes back.
    hand_back_part = 0.5

    def __init__(self, credit: StreamCredit) -> None:
        self.credit = credit
        self._buffer: deque[Span] = deque()
        # Hand-outs of calls under way, or since the last `note_given`.
        self._hand_outs: list[HandOut] = []
        #: Spans that the application has, and whose settlement was not sent yet.
        self.in_flight: list[Span] = []
        self._renewed: list[Span] = []
        self._renewing_records = 0
        # Records whose way back failed: the coordinator has them locked for this consumer still.
        self._failed_returns: list[AckRange] = []

    def receive(self, columns: Columns) -> None:
        """Takes a batch into the buffer. Rows under no lock are dropped: they are not ours."""
        self.credit.add(columns.count, columns.credit_bytes)
        if self._failed_returns:
            # A record that is delivered again was back.
            self._failed_returns = [b for b in self._failed_returns if not _is_in(b.span, columns)]
        spans = columns.spans()
        self._buffer.extend(spans)
        covered = sum(span.stop - span.start for span in spans)
        if covered < columns.count:
            missing = columns.count - covered
            self.credit.remove(missing, columns.credit_bytes * missing // columns.count)

    def take(
        self, limit: int, now: float, owner: object, turns: Turns | None = None
    ) -> tuple[HandOut, list[AckRange]]:
        """Hands out at most `limit` records, which `owner` may acknowledge.

        Args:
            limit: Most records.
            now: The time, on the clock of the locks.
            owner: The consumer's token.
            turns: The order to keep, in a group that keeps order.

        Returns:
            The records, per partition in order of offset; and ranges to hand back because their
            lock ended in the buffer.
        """
        expired: list[AckRange] = []
        spans: list[Span] = []
        waiting: list[Span] = []
        if self._renewing_records:
            # Nothing new is handed out while a renewal has no answer (KIP-932).
            return HandOut(spans), expired
        is_renewed = bool(self._renewed)
        source = deque(self._renewed) if is_renewed else self._buffer
        while source and limit:
            span = source.popleft()
            if not is_renewed and span.lock.deadline <= now:
                expired.append(AckRange(span, RETURN))
                self.credit.remove(len(span), span.credit_bytes)
                if turns is not None:
                    turns.hold_back(span)
                continue
            size = span.stop - span.start
            if turns is not None and not is_renewed:
                picked, left = turns.pick(span, limit)
                size = sum(map(len, picked))
            elif size > limit:
                size, middle = limit, span.start + limit
                picked = [span.within(span.start, middle)]
                left = [span.within(middle, span.stop)]
            else:
                picked, left = [span], []
            limit -= size
            spans += picked
            waiting += left
        source.extendleft(reversed(waiting))
        if is_renewed:
            self._renewed = list(source)
        return self._hand_out(spans, owner, is_renewed=is_renewed), expired

    def _hand_out(self, spans: list[Span], owner: object, *, is_renewed: bool) -> HandOut:
        for columns in {span.columns: None for span in spans}:
            columns.unpack()
            columns.owner = owner
        if is_renewed:
            for span in spans:
                span.mark(IN_FLIGHT)
        else:
            self.credit.remove(*_size(spans))
        for span in spans:
            if span.columns.errors:
                # It was opened before, for a call that gave its records to nobody.
                span.columns.release_unopened(span.start, span.stop)
        hand_out = HandOut(_in_order(spans), is_renewed=is_renewed)
        if spans:
            self._hand_outs.append(hand_out)
        return hand_out

    def note_given(self, *, at_rest: bool) -> None:
        """Notes the records that calls have returned; records that they took and kept wait again.

        Args:
            at_rest: No call is under way that may still return what it took.
        """
        hand_outs, self._hand_outs = self._hand_outs, []
        # Backwards, so that what waits again is in its old order.
        for hand_out in reversed(hand_outs):
            if not (at_rest or hand_out.given):
                self._hand_outs.insert(0, hand_out)
                continue
            hand_out.is_open = False
            given, rest = hand_out.split()
            self._wait_again(rest, is_renewed=hand_out.is_renewed)
            for span in given:
                self._add_given(span)

    def _add_given(self, span: Span) -> None:
        last = self.in_flight[-1] if self.in_flight else None
        if last is not None and last.lock is span.lock and last.stop == span.start:
            # Records that were given one by one are acknowledged together.
            self.in_flight[-1] = last.within(last.start, span.stop)
        else:
            self.in_flight.append(span)

    def _wait_again(self, rest: list[Span], *, is_renewed: bool) -> None:
        runs = [run for span in rest for state, run in span.runs() if state <= RENEW]
        for run in runs:
            run.mark(RENEWED if is_renewed else IN_FLIGHT)
        if is_renewed:
            self._renewed[:0] = runs
        elif runs:
            self._buffer.extendleft(reversed(runs))
            self.credit.set_buffered(*_size(self._buffer))

    def find(self, topic: str, partition: int, offset: int) -> tuple[Columns, int] | None:
        """The newest record with these coordinates that the application has."""
        for span in reversed(self.in_flight):
            columns = span.columns
            if columns.topic != topic:
                continue
            if columns.key.lane:
                for at in range(span.start, span.stop):
                    if columns.source_at(at) == (partition, offset):
                        return columns, at
            elif columns.partition == partition:
                row = columns.row_of(offset)
                if row is not None and span.start <= row < span.stop:
                    return columns, row
        return None

    def has_unacknowledged(self) -> bool:
        """Whether the application has records that it did not acknowledge."""
        return any(
            span.columns.states.find(state, span.start, span.stop) >= 0
            for span in self.in_flight
            for state in (IN_FLIGHT, LOST)
        )

    def collect(self, *, accept_rest: bool) -> tuple[list[AckRange], list[Span]]:
        """Takes acknowledged records from the application.

        Args:
            accept_rest: Whether other records count as accepted (implicit mode).

        Returns:
            Ranges to send, and acknowledged records whose lock is known to be lost.
        """
        ranges: list[AckRange] = []
        lost: list[Span] = []
        kept: list[Span] = []
        for columns, start, stop, spans in joined(self.in_flight):
            states, size = columns.states, stop - start
            first = states[start]
            kind = ACCEPT if accept_rest and first == IN_FLIGHT else first
            plain = ACCEPT <= kind < RENEW and not columns.details
            if plain and states.count(first, start, stop) == size:
                # The common case: one word about all of them.
                ranges += [AckRange(span, kind) for span in spans]
                states[start:stop] = bytes((SETTLED,)) * size
                continue
            kept += self._collect_each(spans, ranges, lost, accept_rest=accept_rest)
        self.in_flight = kept
        return ranges, lost

    def _collect_each(
        self, spans: list[Span], ranges: list[AckRange], lost: list[Span], *, accept_rest: bool
    ) -> list[Span]:
        """Adds what was acknowledged to the lists; returns the spans that the application keeps."""
        kept: list[Span] = []
        for span in spans:
            keep = False
            for state, run in span.runs():
                if state == IN_FLIGHT and accept_rest:
                    ranges.append(AckRange(run, ACCEPT))
                    run.mark(SETTLED)
                elif IN_FLIGHT < state <= RENEW:
                    ranges.extend(_with_details(run, state))
                    run.mark(RENEWING if state == RENEW else SETTLED)
                    if state == RENEW:
                        self._renewing_records += len(run)
                elif state == LOST_ACKNOWLEDGED or (state == LOST and accept_rest):
                    lost.append(run)
                    run.mark(SETTLED)
                elif state in (IN_FLIGHT, LOST):
                    keep = True
            if keep:
                kept.append(span)
        return kept

    def settle_renewals(self, renewed: Iterable[Span], failed: Iterable[Span]) -> None:
        """Keeps renewed records for the next poll; those whose renewal failed are gone."""
        for span in renewed:
            span.mark(RENEWED)
            self._renewing_records -= len(span)
            self._renewed.append(span)
        for span in failed:
            span.mark(SETTLED)
            self._renewing_records -= len(span)

    def give_back(self, unwanted: Callable[[PartitionKey], bool]) -> list[AckRange]:
        """Takes unwanted partitions' records out of the buffer, to be handed back uncounted."""
        return self._take_back(lambda span: unwanted(span.columns.key))

    def _take_back(self, unwanted: Callable[[Span], bool]) -> list[AckRange]:
        kept: deque[Span] = deque()
        back: list[AckRange] = []
        for span in self._buffer:
            if unwanted(span):
                back.append(AckRange(span, RETURN))
                self.credit.remove(len(span), span.credit_bytes)
            else:
                kept.append(span)
        self._buffer = kept
        return back

    @property
    def hand_back_at(self) -> float:
        """The time to hand back the first buffered record, so that its lock ends uncounted."""
        return self._hand_back_at(self._buffer[0]) if self._buffer else math.inf

    def hand_back_due(self, now: float) -> list[AckRange]:
        """Takes records that waited too long out of the buffer, to be handed back uncounted."""
        return self._take_back(lambda span: self._hand_back_at(span) <= now)

    def _hand_back_at(self, span: Span) -> float:
        deadline, received_at = span.lock.deadline, span.columns.received_at
        return deadline - (deadline - received_at) * self.hand_back_part

    def show(
        self, under_way: Iterable[AckRange], room_bytes: int
    ) -> tuple[Sequence[types_pb.HeldRange], int]:
        """Every lock that this consumer holds, as the join shows it.

        Locks that do not fit are given up, so that the join goes through: first those of records
        that nobody saw (the coordinator takes them back uncounted), then those of records that the
        application has, whose acknowledgement fails then.

        Args:
            under_way: Acknowledgements without an answer: their locks are held too.
            room_bytes: What the book may take on the wire.

        Returns:
            The ranges, and how many were given up.
        """
        words: list[Span] = []
        returns: list[Span] = []
        for item in (*under_way, *self._failed_returns):
            (returns if item.kind == RETURN else words).append(item.span)
        # In the order in which they find room.
        spans = [*words, *self._held_spans(), *self._renewed, *self._waiting(), *returns]
        shown, left_out = split_by_room(merged(spans), room_bytes)
        if left_out:
            shown, left_out = split_by_room(one_range_per_lock(spans), room_bytes)
            self.lose(left_out)
        return shown, len(left_out)

    def show_seen(
        self, under_way: Iterable[AckRange], room_bytes: int
    ) -> Sequence[types_pb.HeldRange] | None:
        """Locks on records that the application has or had, for a leave; None = no room.

        Args:
            under_way: Acknowledgements without an answer. They may find no owner any more, and then
                their records count as delivered all the same.
            room_bytes: Bytes that the book may take on the wire.
        """
        words = [i.span for i in (*under_way, *self._failed_returns) if i.kind != RETURN]
        spans = merged([*words, *self._held_spans(), *self._renewed])
        shown, left_out = split_by_room(spans, room_bytes)
        return None if left_out else shown

    def keep_failed_returns(self, failed: Iterable[AckRange], now: float) -> None:
        """Keeps returns that failed, until the coordinator says that the records are back.

        The end of a lock says nothing: who loads a share-partition extends its locks (design 9).
        """
        held = (*self._failed_returns, *failed)
        self._failed_returns = [b for b in held if b.span.lock.deadline + _FAILED_RETURN_S > now]

    def failed_returns(self, now: float) -> list[Span]:
        """Records whose return failed; no record that follows them may be handed out."""
        self.keep_failed_returns((), now)
        return [each.span for each in self._failed_returns]

    def lose(self, lost: Sequence[types_pb.HeldRange]) -> None:
        """Removes locks that the owner says are gone.

        Buffered records are dropped. Records of the application stay, and fail when acknowledged.
        """
        by_token: dict[int, list[types_pb.HeldRange]] = {}
        for item in lost:
            by_token.setdefault(item.lock_token, []).append(item)
        waiting = list(self._buffer)
        self._buffer = deque(p for span in waiting for p in _without(span, by_token))
        before, after = _size(waiting), _size(self._buffer)
        self.credit.remove(before[0] - after[0], before[1] - after[1])
        self._renewed = [p for span in self._renewed for p in _without(span, by_token)]
        self._failed_returns = [
            replace(each, span=p)
            for each in self._failed_returns
            for p in _without(each.span, by_token)
        ]
        self._lose_held(by_token)

    def recount(self, under_way: Iterable[AckRange]) -> None:
        """Recomputes the counters after an exception; `under_way` are unanswered ranges."""
        self.credit.set_buffered(*_size(self._buffer))
        self._renewing_records = sum(
            len(item.span) for item in under_way if item.kind == RENEW and item.checkpoint is None
        )

    def _waiting(self) -> Iterable[Span]:
        return self._buffer

    def _held_spans(self) -> list[Span]:
        return [run for span in self._given() for state, run in span.runs() if state <= RENEW]

    def _given(self) -> list[Span]:
        """Spans that the application has, or gets from a call that is under way."""
        return [*self.in_flight, *(span for each in self._hand_outs for span in each.spans)]

    def _lose_held(self, by_token: dict[int, list[types_pb.HeldRange]]) -> None:
        for span in self._given():
            for start, stop in rows_covered(span, by_token):
                mark_lost(span.within(start, stop))


def _size(spans: Iterable[Span]) -> tuple[int, int]:
    records = size_bytes = 0
    for span in spans:
        records += span.stop - span.start
        size_bytes += span.credit_bytes
    return records, size_bytes


def mark_lost(span: Span) -> None:
    for state, run in span.runs():
        if state == IN_FLIGHT:
            run.mark(LOST)
        elif state <= RENEW:
            run.mark(LOST_ACKNOWLEDGED)


def rows_covered(
    span: Span, by_token: dict[int, list[types_pb.HeldRange]]
) -> list[tuple[int, int]]:
    """Rows [start, stop) of a span that ranges of its own lock cover, in order."""
    key = span.columns.key
    rows = [
        span.overlap(item.first_offset, item.last_offset)
        for item in by_token.get(span.lock.token, ())
        if PartitionKey.of(item.partition) == key
    ]
    return sorted(hit for hit in rows if hit is not None)


def _without(span: Span, by_token: dict[int, list[types_pb.HeldRange]]) -> list[Span]:
    gone = rows_covered(span, by_token)
    if not gone:
        return [span]
    left: list[Span] = []
    row = span.start
    for start, stop in gone:
        if row < start:
            left.append(span.within(row, start))
        row = max(row, stop)
    if row < span.stop:
        left.append(span.within(row, span.stop))
    return left


def _is_in(span: Span, columns: Columns) -> bool:
    """Whether a batch brings records of a span."""
    return span.columns.key == columns.key and any(
        span.overlap(lock.first_offset, lock.last_offset) for lock in columns.locks
    )


def _in_order(spans: list[Span]) -> list[Span]:
    """Spans grouped by partition in order of arrival, and sorted by offset within each."""
    if len(spans) < 2:
        return spans
    rank: dict[PartitionKey, int] = {}
    ranks: dict[Columns, int] = {}
    for span in spans:
        if span.columns not in ranks:
            ranks[span.columns] = rank.setdefault(span.columns.key, len(rank))
    return sorted(spans, key=lambda span: (ranks[span.columns], span.first_offset))


def _with_details(run: Span, kind: int) -> list[AckRange]:
    """A range for the run, or several when details differ inside."""
    details = run.columns.details
    if not details:
        return [AckRange(run, kind)]
    rows = [(row, details.pop(row, NO_DETAILS)) for row in range(run.start, run.stop)]
    ranges = []
    for said, group in groupby(rows, key=lambda item: item[1]):
        members = [row for row, _ in group]
        ranges.append(AckRange(run.within(members[0], members[-1] + 1), kind, said))
    return ranges
