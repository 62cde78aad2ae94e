"""Records that handlers have: rows of batches, from their start until their outcome is sent.

A record is a row of a `Columns`; its state byte says whether a handler has it (IN_FLIGHT), its lock
is gone (LOST) or it is done (SETTLED). Starting and finishing a record makes no object.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from sharecoord_sdk._core.acks import ACCEPT, REJECT, RETURN, AckRange
from sharecoord_sdk._core.columns import (
    IN_FLIGHT,
    LOST,
    SETTLED,
    Columns,
    PartitionKey,
    Span,
)
from sharecoord_sdk._core.credit import StreamCredit
from sharecoord_sdk._core.lock_book import LockBook, mark_lost, rows_covered
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .handlers import Handler
from .line import WAITING, Lease, Line, Place, Settlement

#: While a lock's duration is not known.
DURATION_S = 30.0


class Part(NamedTuple):
    """Rows [start, stop) of a lease, inside a batch."""

    lease: Lease
    start: int
    stop: int


class WorkerLeases(LockBook):
    """The lock book of a worker: records that wait, and those that handlers have.

    Invariant: a row is waiting (in `_buffer`), running (in a lease, IN_FLIGHT or LOST), or done.
    `handlers` are by topic.
    """

    #: Slots are busy for longer.
    hand_back_part = 0.2

    def __init__(self, credit: StreamCredit, handlers: Mapping[str, Handler]) -> None:
        super().__init__(credit)
        self._handlers = handlers
        self.lines = {h.topic: Line(h) for h in handlers.values() if h.behaviour.is_held}
        # The lines in order of their turns; and whether the buffer is next.
        self._turns = deque(self.lines.values())
        self._line_went = False
        self._head: Lease | None = None
        self.leases: dict[Lease, None] = {}
        self._dirty: dict[Lease, None] = {}
        self._lost: list[Span] = []
        self._expired: list[AckRange] = []
        self.duration_s = DURATION_S
        #: The checkpoint store of these records.
        self.owner: object = None
        #: Handlers that run.
        self.jobs = 0
        #: Running handlers that were given up, and whose threads have not returned.
        self.stuck = 0
        #: Records that they have.
        self.running = 0
        #: Records finished since the last `collect`.
        self.finished = 0

    @property
    def waiting(self) -> int:
        return self.credit.buffered_records

    @property
    def startable(self) -> int:
        """Records that a free slot could have, as of the last look."""
        count = self.credit.buffered_records
        for line in self._turns:
            count += line.startable - line.waiting
        return count

    @property
    def has_results(self) -> bool:
        return bool(self._dirty or self._lost or self._expired)

    # -- starting -----------------------------------------------------------------------------

    def head(self, now: float) -> Lease | None:
        """The lease to start the next record from, or None when none waits."""
        if self.lines and not (self._line_went and self._buffer):
            found = self._line_head(now)
            if found is not None:
                return found
        lease = self._head
        if lease is not None and now < lease.due:
            return lease
        opened = self._open(now)
        if opened is None and self._line_went:
            return self._line_head(now)
        return opened

    def peek_lines(self, now: float) -> None:
        for line in self.lines.values():
            line.peek(now)

    def _line_head(self, now: float) -> Lease | None:
        for _ in range(len(self._turns)):
            line = self._turns[0]
            while (lease := line.peek(now)) is not None:
                deadline = lease.span.lock.deadline
                if deadline > now:
                    lease.due = min(lease.due, self._due(deadline, now))
                    return lease
                rows = range(lease.first, lease.span.stop)
                self._expired += self._returns(line.give_back(lease, rows))
            self._turns.rotate(-1)
        return None

    def _due(self, deadline: float, now: float) -> float:
        """When to renew a lock; one whose record waited long, after half of the rest."""
        due = deadline - self.duration_s / 2
        return due if due > now else (now + deadline) / 2

    def _open(self, now: float) -> Lease | None:
        self.close_head()
        while self._buffer:
            span = self._buffer[0]
            deadline = span.lock.deadline
            if deadline <= now:
                self._buffer.popleft()
                self.credit.remove(len(span), span.credit_bytes)
                self._expired.append(AckRange(span, RETURN))
                continue
            due = self._due(deadline, now)
            span.columns.unpack()
            span.columns.owner = self.owner
            # Bytes leave the buffer with the first record; rows one by one.
            self.credit.remove(0, span.credit_bytes)
            lease = Lease(span, self._handlers[span.columns.topic], due)
            self.leases[lease] = None
            self._head = lease
            return lease
        return None

    def hand_back_due(self, now: float) -> list[AckRange]:
        self.close_head()
        return super().hand_back_due(now)

    @property
    def lines_hand_back_at(self) -> float:
        """`hand_back_at` of records that wait for more than a free slot."""
        firsts = [next(iter(line.leases), None) for line in self.lines.values()]
        return min((self._hand_back_at(lease.span) for lease in firsts if lease), default=math.inf)

    def hand_back_from_lines(self, now: float) -> None:
        """Takes records that waited too long out of lines; `take_expired` has them."""
        for line in self.lines.values():
            while line.leases:
                lease = next(iter(line.leases))
                if self._hand_back_at(lease.span) > now:
                    break
                rows = range(lease.first, lease.span.stop)
                self._expired += self._returns(line.give_back(lease, rows))

    def close_head(self) -> None:
        """Ends the head; what waits of it becomes a span of its own in the buffer."""
        lease, self._head = self._head, None
        if lease is None:
            return
        rest = lease.span.within(lease.span.start, lease.span.stop)
        self._buffer[0] = rest
        self.credit.buffered_bytes += rest.credit_bytes
        self._drop_if_done(lease)

    def start(self, lease: Lease) -> int:
        if lease.line is not None:
            self.jobs += 1
            return self._started(lease.line.start())
        span = lease.span
        row = span.start
        span.start = row + 1
        lease.running += 1
        self.running += 1
        self.jobs += 1
        self.credit.buffered_records -= 1
        self._line_went = False
        if span.start == span.stop:
            self._exhausted()
        return row

    def _started(self, place: Place) -> int:
        """Counts a record that has left its line."""
        lease, row = place
        if not lease.running:
            lease.since = None
        lease.running += 1
        self.running += 1
        self._line_went = True
        self._turns.rotate(-1)
        self._left_line(lease, 1)
        return row

    def _left_line(self, lease: Lease, rows: int) -> None:
        """Removes rows from the credit; the bytes of a lease leave it with its last row."""
        size = 0
        if not lease.waiting:
            size, lease.held_bytes = lease.held_bytes, 0
        self.credit.remove(rows, size)

    def start_batch(self, lease: Lease, now: float) -> list[Part]:
        """Gives up to `batch` records, all of the head's topic, to a handler."""
        parts: list[Part] = []
        if lease.line is not None:
            self.jobs += 1
            for place in lease.line.start_batch(now):
                self._started(place)
                extend(parts, *place)
            return parts
        handler = lease.handler
        room = handler.batch
        self.jobs += 1
        self._line_went = False
        head: Lease | None = lease
        while room and head is not None and head.handler is handler:
            span = head.span
            rows = min(room, len(span))
            parts.append(Part(head, span.start, span.start + rows))
            span.start += rows
            room -= rows
            head.running += rows
            self.running += rows
            self.credit.buffered_records -= rows
            if span.start == span.stop:
                self._exhausted()
                head = self._open(now) if room else None
        return parts

    def _exhausted(self) -> None:
        self._buffer.popleft()
        self._head = None
        # Settles what was rounded when nothing waits any more.
        self.credit.remove(0, 0)

    # -- finishing ----------------------------------------------------------------------------

    def accept(self, lease: Lease, row: int) -> None:
        self.jobs -= 1
        self.running -= 1
        self.finished += 1
        lease.running -= 1
        if lease.states[row] == IN_FLIGHT:
            lease.states[row] = SETTLED
            lease.accepted.append(row)
            self._dirty[lease] = None
            if lease.line is not None:
                lease.line.passed(lease, row)
        else:
            self._settle_lost(lease, row, row + 1)
        if not lease.running:
            self._drop_if_done(lease)

    def settle_each(self, parts: Sequence[Part], settlements: Sequence[Settlement | None]) -> None:
        """Settles records one by one, in order."""
        rows = [(lease, row) for lease, start, stop in parts for row in range(start, stop)]
        for (lease, row), settlement in zip(rows, settlements, strict=True):
            self.settle([Part(lease, row, row + 1)], settlement)

    def settle(self, parts: Sequence[Part], settlement: Settlement | None) -> None:
        """Settles records alike (None = ACCEPT); the caller gives the slot back."""
        for lease, start, stop in parts:
            rows = stop - start
            self.running -= rows
            self.finished += rows
            lease.running -= rows
            if lease.states.count(IN_FLIGHT, start, stop) == rows:
                lease.states[start:stop] = bytes((SETTLED,)) * rows
                alive: Iterable[int] = range(start, stop)
            else:
                alive = [row for row in range(start, stop) if lease.states[row] == IN_FLIGHT]
                self._settle_lost(lease, start, stop)
            if settlement is None:
                lease.accepted.extend(alive)
            else:
                lease.others.extend((row, settlement) for row in alive)
            self._dirty[lease] = None
            if lease.line is not None:
                # A record that goes back unseen follows the one that broke the queue.
                breaks = settlement is not None and settlement.kind not in (REJECT, RETURN)
                leave = lease.line.broke if breaks else lease.line.passed
                for row in alive:
                    back = leave(lease, row)
                    if back:
                        self._expired += self._returns(back)
            self._drop_if_done(lease)

    def _returns(self, rows: Sequence[Place]) -> list[AckRange]:
        """Rows that were taken out of a line, as ranges that go back."""
        by_lease: dict[Lease, list[int]] = {}
        for lease, row in rows:
            by_lease.setdefault(lease, []).append(row)
        ranges: list[AckRange] = []
        for lease, found in by_lease.items():
            self._left_line(lease, len(found))
            ranges += [AckRange(lease.span.within(*run), RETURN) for run in runs_of(found)]
            self._drop_if_done(lease)
        return ranges

    def _settle_lost(self, lease: Lease, start: int, stop: int) -> None:
        """Drops the results of rows whose lock went meanwhile, and keeps them for a notice."""
        if lease.line is not None:
            for row in range(start, stop):
                if lease.states[row] == LOST:
                    # The queue broke when the lock went.
                    lease.line.passed(lease, row)
        for state, run in lease.span.within(start, stop).runs():
            if state == LOST:
                self._lost.append(run)
            run.mark(SETTLED)

    def _drop_if_done(self, lease: Lease) -> None:
        if not (lease.running or lease.waiting) and lease is not self._head:
            self.leases.pop(lease, None)

    def has_unacknowledged(self) -> bool:
        return self.running > 0

    def collect(self, *, accept_rest: bool) -> tuple[list[AckRange], list[Span]]:
        """Results since the last time: ranges to send, and rows that were lost meanwhile."""
        dirty, self._dirty = self._dirty, {}
        lost, self._lost = self._lost, []
        self.finished = 0
        ranges: list[AckRange] = []
        for lease in dirty:
            within = lease.span.within
            rows, lease.accepted = lease.accepted, []
            ranges.extend(AckRange(within(*run), ACCEPT) for run in runs_of(rows))
            others, lease.others = lease.others, []
            others.sort(key=lambda item: item[0])
            for settlement, group in groupby(others, key=lambda item: item[1]):
                runs = runs_of([row for row, _ in group])
                ranges.extend(AckRange(within(*run), *settlement) for run in runs)
        return ranges, lost

    def take_expired(self) -> list[AckRange]:
        """Ranges that go back because no handler saw them in time."""
        expired, self._expired = self._expired, []
        return expired

    # -- what the coordinator wants to know, and says -------------------------------------------

    def receive(self, columns: Columns) -> None:
        """See `LockBook.receive`; records of handlers with a line go into the line."""
        super().receive(columns)
        line = self.lines.get(columns.topic)
        if line is None:
            return
        spans: list[Span] = []
        while self._buffer and self._buffer[-1].columns is columns:
            spans.append(self._buffer.pop())
        columns.unpack()
        columns.owner = self.owner
        for span in reversed(spans):
            lease = Lease(span, line.handler, math.inf)
            lease.line = line
            lease.held_bytes = span.credit_bytes
            self.leases[lease] = None
            back = line.add(lease)
            if back:
                self._expired += self._returns(back)

    def give_back(self, unwanted: Callable[[PartitionKey], bool]) -> list[AckRange]:
        self.close_head()
        back = super().give_back(unwanted)
        for line in self.lines.values():
            for lease in [lease for lease in line.leases if unwanted(lease.columns.key)]:
                back += self._returns(line.give_back(lease, range(lease.first, lease.span.stop)))
        return back

    def lose(self, lost: Sequence[types_pb.HeldRange]) -> None:
        """See `LockBook.lose`; the results of running handlers are dropped when they come."""
        self.close_head()
        super().lose(lost)

    def confirmed(self, span: Span, *, is_lost: bool) -> None:
        """Notes the coordinator's answer about records; lost = it did not take the result."""
        columns = span.columns
        line = self.lines.get(columns.topic)
        if line is None:
            return
        line.confirmed(columns, range(span.start, span.stop))
        if is_lost:
            self._break_after(line, span)

    def mark_lost(self, span: Span) -> None:
        """Marks a span's lock as lost: handlers that still run lose their results."""
        mark_lost(span)
        line = self.lines.get(span.columns.topic)
        if line is not None:
            self._break_after(line, span)

    def _break_after(self, line: Line, span: Span) -> None:
        for row in range(span.start, span.stop):
            back = line.lost(span.columns, row)
            if back:
                self._expired += self._returns(back)

    def _waiting(self) -> list[Span]:
        leases = (lease for line in self.lines.values() for lease in line.leases)
        lined = [span for lease in leases for span in lease.spans_in(WAITING)]
        return [*super()._waiting(), *lined]

    def checkpoint_stored(self, columns: Columns, row: int, now: float) -> float:
        """Begins `renew_max_s` anew after a checkpoint; returns when to renew."""
        for lease in self.leases:
            # Rows of a line are not started from the front on.
            end = lease.span.start if lease.line is None else lease.span.stop
            if lease.columns is columns and lease.first <= row < end:
                lease.since = None
                lease.due = min(lease.due, now + self.duration_s / 2)
                return lease.due
        return math.inf

    def _held_spans(self) -> list[Span]:
        return [span for lease in self.leases for span in lease.running_spans()]

    def _lose_held(self, by_token: dict[int, list[types_pb.HeldRange]]) -> None:
        # Waiting rows first: lost ones must not go back with the rest of their queue.
        for line in self.lines.values():
            self._lose_in_line(line, by_token)
        for span in self._held_spans():
            for start, stop in rows_covered(span, by_token):
                self.mark_lost(span.within(start, stop))

    def _lose_in_line(self, line: Line, by_token: dict[int, list[types_pb.HeldRange]]) -> None:
        """Drops lost rows that wait; rows that follow them in their queues go back."""
        gone: dict[Lease, set[int]] = {}
        for lease in line.leases:
            for span in lease.spans_in(WAITING):
                for start, stop in rows_covered(span, by_token):
                    gone.setdefault(lease, set()).update(range(start, stop))
        back = [place for lease, rows in gone.items() for place in line.give_back(lease, rows)]
        lost = [(lease, row) for lease, row in back if row in gone.get(lease, ())]
        self._returns(lost)
        self._expired += self._returns([place for place in back if place not in lost])


def extend(parts: list[Part], lease: Lease, row: int) -> None:
    """Adds a row to parts, to the last one when it follows it."""
    if parts and parts[-1].lease is lease and parts[-1].stop == row:
        parts[-1] = parts[-1]._replace(stop=row + 1)
    else:
        parts.append(Part(lease, row, row + 1))


def runs_of(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Runs [start, stop) of consecutive rows. Sorts the list."""
    if not rows:
        return
    rows.sort()
    first, last = rows[0], rows[-1]
    if last - first == len(rows) - 1:
        yield first, last + 1
        return
    start = stop = first
    for row in rows:
        if row != stop:
            yield start, stop
            start = row
        stop = row + 1
    yield start, stop
