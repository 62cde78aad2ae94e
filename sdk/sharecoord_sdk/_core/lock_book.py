"""What this consumer holds: records that wait, records that the application has, renewed ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .acks import ACCEPT, RENEW, RETURN, AckRange
from .columns import (
    IN_FLIGHT,
    LOST,
    LOST_ACKNOWLEDGED,
    RENEWED,
    RENEWING,
    SETTLED,
    Columns,
    PartitionKey,
    Span,
)
from .credit import CreditWindow
from .held import fitting, hulls, merged, size_of


class LockBook:
    """The records under lock of one consumer.

    Invariant: a row is in at most one of `_buffer`, `_in_flight` and `_renewed`, and `credit`
    counts exactly what is in `_buffer`.
    """

    def __init__(self, credit: CreditWindow) -> None:
        self.credit = credit
        self._buffer: deque[Span] = deque()
        self._in_flight: list[Span] = []
        self._renewed: list[Span] = []
        self._renewing_records = 0

    @property
    def is_renewing(self) -> bool:
        """Whether a renewal has no answer yet: nothing new is handed out meanwhile (KIP-932)."""
        return self._renewing_records > 0

    def receive(self, columns: Columns) -> None:
        """Takes a batch into the buffer. Rows under no lock are dropped: they are not ours."""
        self.credit.add(columns.count, columns.credit_bytes)
        covered = 0
        for lock in columns.locks:
            if lock.start < lock.stop:
                self._buffer.append(Span(columns, lock, lock.start, lock.stop))
                covered += lock.stop - lock.start
        if covered < columns.count:
            missing = columns.count - covered
            self.credit.remove(missing, columns.credit_bytes * missing // columns.count)

    def take(self, limit: int, now: float, owner: object) -> tuple[list[Span], list[AckRange]]:
        """Hands out records.

        Args:
            limit: Most records.
            now: The time, on the clock of the locks.
            owner: Who may acknowledge them.

        Returns:
            The records, per partition in order of offset, and what goes back because its lock
            ended in the buffer.
        """
        expired: list[AckRange] = []
        spans: list[Span] = []
        if self.is_renewing:
            return spans, expired
        source = deque(self._renewed) if self._renewed else self._buffer
        room = limit
        while source and room:
            span = source[0]
            if source is self._buffer and span.lock.deadline <= now:
                expired.append(AckRange(source.popleft(), RETURN))
                self.credit.remove(len(span), span.credit_bytes)
                continue
            taken = source.popleft() if len(span) <= room else span.cut(room)
            room -= len(taken)
            spans.append(taken)
        self._hand_out(spans, owner, from_buffer=source is self._buffer)
        if source is not self._buffer:
            self._renewed = list(source)
        return _in_order(spans), expired

    def _hand_out(self, spans: list[Span], owner: object, *, from_buffer: bool) -> None:
        for span in spans:
            span.columns.unpack()
            span.columns.owner = owner
            if from_buffer:
                self.credit.remove(len(span), span.credit_bytes)
            else:
                span.mark(IN_FLIGHT)
        self._in_flight.extend(spans)

    def find(self, topic: str, partition: int, offset: int) -> tuple[Columns, int] | None:
        """The newest record with these coordinates that the application has."""
        for span in reversed(self._in_flight):
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
        """Whether the application still has records that it said nothing of."""
        return any(
            span.columns.states.find(state, span.start, span.stop) >= 0
            for span in self._in_flight
            for state in (IN_FLIGHT, LOST)
        )

    def collect(self, *, accept_rest: bool) -> tuple[list[AckRange], list[Span]]:
        """Takes what was acknowledged out of the application's hands.

        Args:
            accept_rest: Whether records without a word count as accepted (implicit mode).

        Returns:
            What to send, and acknowledged records whose lock is known to be lost.
        """
        ranges: list[AckRange] = []
        lost: list[Span] = []
        kept: list[Span] = []
        for span in self._in_flight:
            keep = False
            for state, run in span.runs():
                if state == IN_FLIGHT and accept_rest:
                    ranges.append(AckRange(run, ACCEPT))
                    run.mark(SETTLED)
                elif IN_FLIGHT < state <= RENEW:
                    ranges.extend(_with_details(run, state))
                    self._sent(run, state)
                elif state == LOST_ACKNOWLEDGED or (state == LOST and accept_rest):
                    lost.append(run)
                    run.mark(SETTLED)
                elif state in (IN_FLIGHT, LOST):
                    keep = True
            if keep:
                kept.append(span)
        self._in_flight = kept
        return ranges, lost

    def _sent(self, run: Span, state: int) -> None:
        run.mark(RENEWING if state == RENEW else SETTLED)
        if state == RENEW:
            self._renewing_records += len(run)

    def settle_renewals(self, renewed: Iterable[Span], failed: Iterable[Span]) -> None:
        """Renewed records come back by the next poll; those whose renewal failed are gone."""
        for span in renewed:
            span.mark(RENEWED)
            self._renewing_records -= len(span)
            self._renewed.append(span)
        for span in failed:
            span.mark(SETTLED)
            self._renewing_records -= len(span)

    def give_back(self, unwanted: Callable[[PartitionKey], bool]) -> list[AckRange]:
        """Takes records that nobody saw out of the buffer, to be handed back uncounted."""
        kept: deque[Span] = deque()
        back: list[AckRange] = []
        for span in self._buffer:
            if unwanted(span.columns.key):
                back.append(AckRange(span, RETURN))
                self.credit.remove(len(span), span.credit_bytes)
            else:
                kept.append(span)
        self._buffer = kept
        return back

    def show(
        self, under_way: Iterable[AckRange], room_bytes: int
    ) -> tuple[list[types_pb.HeldRange], int]:
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
        for item in under_way:
            (returns if item.kind == RETURN else words).append(item.span)
        # In the order in which they find room.
        spans = [*words, *self._in_hands(), *self._renewed, *self._waiting(), *returns]
        book = merged(spans)
        if size_of(book) > room_bytes:
            book = hulls(spans)
        shown, left_out = fitting(book, room_bytes)
        self.lose([item.to_wire() for item in left_out])
        return [item.to_wire() for item in shown], len(left_out)

    def show_seen(
        self, under_way: Iterable[AckRange], room_bytes: int
    ) -> list[types_pb.HeldRange] | None:
        """What the application has or had, as a leave shows it; None when it does not fit.

        Args:
            under_way: Acknowledgements without an answer. They may find no owner any more, and then
                their records count as delivered all the same.
            room_bytes: What the book may take on the wire.
        """
        words = [item.span for item in under_way if item.kind != RETURN]
        spans = merged([*words, *self._in_hands(), *self._renewed])
        shown, left_out = fitting(spans, room_bytes)
        return None if left_out else [item.to_wire() for item in shown]

    def lose(self, lost: Sequence[types_pb.HeldRange]) -> None:
        """Takes note of locks that the owner says are gone.

        What waited is dropped. What the application has stays there, and fails when acknowledged.
        """
        by_token: dict[int, list[types_pb.HeldRange]] = {}
        for item in lost:
            by_token.setdefault(item.lock_token, []).append(item)
        waiting = list(self._buffer)
        self._buffer = deque(p for span in waiting for p in _without(span, by_token))
        before, after = _size(waiting), _size(self._buffer)
        self.credit.remove(before[0] - after[0], before[1] - after[1])
        self._renewed = [p for span in self._renewed for p in _without(span, by_token)]
        self._lose_in_hands(by_token)

    def _waiting(self) -> Iterable[Span]:
        """What nobody has seen."""
        return self._buffer

    def _in_hands(self) -> list[Span]:
        """What the application has."""
        return [run for span in self._in_flight for state, run in span.runs() if state <= RENEW]

    def _lose_in_hands(self, by_token: dict[int, list[types_pb.HeldRange]]) -> None:
        for span in self._in_flight:
            for start, stop in hits(span, by_token):
                _mark_lost(span.within(start, stop))


def _size(spans: Iterable[Span]) -> tuple[int, int]:
    records = size_bytes = 0
    for span in spans:
        records += len(span)
        size_bytes += span.credit_bytes
    return records, size_bytes


def _mark_lost(span: Span) -> None:
    for state, run in span.runs():
        if state == IN_FLIGHT:
            run.mark(LOST)
        elif state <= RENEW:
            run.mark(LOST_ACKNOWLEDGED)


def hits(span: Span, by_token: dict[int, list[types_pb.HeldRange]]) -> list[tuple[int, int]]:
    """Rows [start, stop) of a span that ranges of its own lock cover, in order."""
    key = span.columns.key
    rows = [
        span.overlap(item.first_offset, item.last_offset)
        for item in by_token.get(span.lock.token, ())
        if key.is_at(item.partition)
    ]
    return sorted(hit for hit in rows if hit is not None)


def _without(span: Span, by_token: dict[int, list[types_pb.HeldRange]]) -> list[Span]:
    gone = hits(span, by_token)
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


def _in_order(spans: list[Span]) -> list[Span]:
    """Partitions as they came, and within each the offsets ascending (a redelivery comes late)."""
    if len(spans) < 2:
        return spans
    rank: dict[PartitionKey, int] = {}
    for span in spans:
        rank.setdefault(span.columns.key, len(rank))
    return sorted(spans, key=lambda span: (rank[span.columns.key], span.first_offset))


def _with_details(run: Span, kind: int) -> list[AckRange]:
    """One range, or several when delays or reasons differ inside."""
    details = run.columns.details
    if not details:
        return [AckRange(run, kind)]
    plain = (0, "")
    rows = [(row, details.pop(row, plain)) for row in range(run.start, run.stop)]
    ranges = []
    for (delay_ms, reason), group in groupby(rows, key=lambda item: item[1]):
        members = [row for row, _ in group]
        ranges.append(AckRange(run.within(members[0], members[-1] + 1), kind, delay_ms, reason))
    return ranges
