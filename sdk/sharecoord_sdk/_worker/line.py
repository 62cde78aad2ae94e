"""Records that wait for more than a free slot: an earlier record of their key, a rate, a breaker.

Handlers with `ordering`, a rate or a breaker have a `Line` each, so that the gates of one hold
back no other. Its records stand in *queues*: one for each key of a partition
(`ordering="key"`), one for a partition (`ordering="partition"`), one for each record that has no
order. Of a queue with order one record runs at a time, in order of offset.

When a record is not accepted or rejected, its queue *breaks*: the later ones go back unseen. What
comes for the queue until the coordinator has answered was sent before it knew, and goes back as
well (in a group with `share.ordering` it takes the rest of a chain back itself).
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from sharecoord_sdk._core.columns import (
    IN_FLIGHT,
    NO_DETAILS,
    SETTLED,
    AckDetails,
    Columns,
    PartitionKey,
    Span,
)
from sharecoord_sdk._core.order import KEY, PARTITION

from .gates import BreakerState, KeyRates, Rate
from .handlers import Handler

#: State of a row that stands in a queue.
WAITING: Final = 249

#: A row of a lease.
Place = tuple["Lease", int]

_NO_QUEUES: Final[dict[Hashable, KeyQueue]] = {}


@dataclass(slots=True, eq=False)
class KeyQueue:
    """Records of one order: (offset, lease, row), ascending."""

    #: Where it is kept, or None: a record without order.
    key: tuple[PartitionKey, Hashable] | None
    rows: deque[tuple[int, Lease, int]] = field(default_factory=deque)
    #: Records that a handler has.
    running: int = 0
    #: Records that failed, and whose outcome the coordinator has not confirmed.
    broken: int = 0
    #: Whether it stands among those that may go on.
    is_listed: bool = False


class Settlement(NamedTuple):
    """An acknowledgement other than a plain ACCEPT."""

    kind: int
    details: AckDetails = NO_DETAILS


@dataclass(slots=True, eq=False)
class Lease:
    """The rows of one span that are renewed together.

    Rows [first, span.start) were started; [span.start, span.stop) wait, while this is the head.
    """

    span: Span
    handler: Handler
    #: When its locks are to be renewed; nothing is started from this lease after that.
    due: float
    first: int = field(init=False)
    columns: Columns = field(init=False)
    states: bytearray = field(init=False)
    #: When it was renewed first, or None.
    since: float | None = None
    #: Records that handlers have.
    running: int = 0
    #: Finished rows that were not collected yet.
    accepted: list[int] = field(default_factory=list)
    others: list[tuple[int, Settlement]] = field(default_factory=list)
    #: Where its rows wait, or None; then `queues` has the queue of each row that runs,
    #: `waiting` counts those that wait, `held_bytes` is what they have of the credit, and
    #: `probe` is the row that tries for a breaker, or -1.
    line: Line | None = None
    queues: dict[int, KeyQueue] = field(default_factory=dict)
    waiting: int = 0
    held_bytes: int = 0
    probe: int = -1

    def __post_init__(self) -> None:
        self.first, self.columns = self.span.start, self.span.columns
        self.states = self.columns.states

    def running_spans(self) -> list[Span]:
        return self.spans_in(IN_FLIGHT)

    def spans_in(self, wanted: int) -> list[Span]:
        """Runs of started rows (or of those in queues) that are in one state."""
        if self.first == self.span.start:
            return []
        started = self.span.within(self.first, self.span.start)
        return [run for state, run in started.runs() if state == wanted]


class Line:
    """The waiting records of one handler, and the gates that hold them."""

    def __init__(self, handler: Handler) -> None:
        behaviour = handler.behaviour
        self.handler = handler
        self._ordering = behaviour.ordering
        self._rate = Rate(behaviour.rate_per_s) if behaviour.rate_per_s else None
        per_key = behaviour.rate_per_key_per_s
        self._key_rates = KeyRates(per_key) if per_key else None
        self.breaker = (
            BreakerState(behaviour.breaker, handler.name, handler.topic)
            if behaviour.breaker
            else None
        )
        self._is_gated = bool(self._rate or self._key_rates or self.breaker)
        self._queues: dict[PartitionKey, dict[Hashable, KeyQueue]] = {}
        self._ready: deque[KeyQueue] = deque()
        # Queues that wait for the rate of their key: (when, number, queue).
        self._timed: list[tuple[float, int, KeyQueue]] = []
        self._numbers = 0
        #: Leases with rows that wait, in order of arrival.
        self.leases: dict[Lease, None] = {}
        self._broken: dict[tuple[Columns, int], KeyQueue] = {}
        self._is_closed = False
        self._now = 0.0
        #: Records that stand in queues.
        self.waiting = 0

    # -- coming in ----------------------------------------------------------------------------

    def add(self, lease: Lease) -> list[Place]:
        """Puts a lease's rows into their queues; returns rows of broken queues, which go back."""
        span = lease.span
        queues = self._queues.setdefault(span.columns.key, {})
        offsets = span.offsets()
        whole = self._ordering == PARTITION
        by_key = self._ordering == KEY or self._key_rates is not None
        if by_key and span.columns.unopened:
            span.columns.open(span.start, span.stop)
        keys = span.columns.keys
        back: list[int] = []
        for row, offset in enumerate(offsets, span.start):
            key: Hashable = None if keys is None else keys[row]
            if whole:
                key = PARTITION
            elif key is None or not by_key:
                self._push(KeyQueue(None), offset, lease, row)
                continue
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = KeyQueue((span.columns.key, key))
            if queue.broken:
                back.append(row)
            else:
                self._push(queue, offset, lease, row)
        lease.states[span.start : span.stop] = bytes((WAITING,)) * len(span)
        self.waiting += len(span)
        lease.waiting = len(span)
        self.leases[lease] = None
        span.start = span.stop
        return self._take_out([(lease, row) for row in back])

    def _push(self, queue: KeyQueue, offset: int, lease: Lease, row: int) -> None:
        item = (offset, lease, row)
        if queue.rows and queue.rows[-1][0] > offset:
            # A redelivery: it comes before what waits.
            rows = list(queue.rows)
            insort(rows, item, key=itemgetter(0))
            queue.rows = deque(rows)
        else:
            queue.rows.append(item)
        if not queue.is_listed:
            self._list(queue)

    def _may_go(self, queue: KeyQueue) -> bool:
        """Whether nothing of the queue has to end before its next record."""
        return not (queue.broken or (queue.running and self._ordering))

    def _list(self, queue: KeyQueue) -> None:
        if queue.rows and not queue.is_listed and self._may_go(queue):
            queue.is_listed = True
            self._ready.append(queue)

    # -- going out ----------------------------------------------------------------------------

    @property
    def startable(self) -> int:
        """About as many handlers as may start, as of the last `peek`; 0 when that found none."""
        return 0 if self._is_closed else len(self._ready)

    def opens_at(self) -> float:
        """The time at which a record may start that waits for time alone; inf when none does."""
        if not self.waiting:
            return math.inf
        if self.breaker is not None and self.breaker.holds:
            return math.inf
        gate = -math.inf if self._rate is None else self._rate.opens_at()
        if self._ready:
            return gate
        return max(gate, self._timed[0][0]) if self._timed else math.inf

    def peek(self, now: float) -> Lease | None:
        """The lease of the record that starts next, or None."""
        self._now = now
        ready = self._ready
        if self._is_gated:
            is_broken = self.breaker is not None and self.breaker.holds
            self._is_closed = is_broken or (self._rate is not None and self._rate.opens_at() > now)
            while self._timed and self._timed[0][0] <= now:
                ready.append(heapq.heappop(self._timed)[2])
            if self._is_closed:
                return None
        while ready:
            queue = ready[0]
            if queue.rows and self._may_go(queue):
                at = self._key_opens_at(queue)
                if at <= now:
                    return queue.rows[0][1]
                self._numbers += 1
                heapq.heappush(self._timed, (at, self._numbers, queue))
            else:
                queue.is_listed = False
            ready.popleft()
        return None

    def _key_opens_at(self, queue: KeyQueue) -> float:
        if self._key_rates is None or queue.key is None:
            return -math.inf
        return self._key_rates.opens_at(queue.key)

    def start(self) -> Place:
        queue = self._ready.popleft()
        _, lease, row = queue.rows.popleft()
        queue.is_listed = False
        queue.running += 1
        lease.queues[row] = queue
        lease.states[row] = IN_FLIGHT
        self._left(lease)
        if self._is_gated:
            self._count_start(queue, lease, row)
        if queue.rows and not self._ordering:
            self._list(queue)
        return lease, row

    def _count_start(self, queue: KeyQueue, lease: Lease, row: int) -> None:
        if self._rate is not None:
            self._rate.take(1, self._now)
        if self._key_rates is not None and queue.key is not None:
            self._key_rates.take(queue.key, self._now)
        if self.breaker is not None and self.breaker.started():
            lease.probe = row

    def start_batch(self, now: float) -> list[Place]:
        """Takes the next records, several of a queue in order, as many as one call takes."""
        taken: list[Place] = []
        room = self.handler.batch
        if self._rate is not None:
            room = min(room, self._rate.room(now))
        if self.breaker is not None and self.breaker.state == BreakerState.PROBING:
            room = 1
        while len(taken) < room and self.peek(now) is not None:
            queue = self._ready[0]
            taken.append(self.start())
            while queue.rows and queue.running and len(taken) < room and self._ordering:
                if self._key_opens_at(queue) > now:
                    break
                # Records of one queue may run in one call: the handler takes them in order.
                self._ready.appendleft(queue)
                taken.append(self.start())
        return taken

    def _left(self, lease: Lease) -> None:
        self.waiting -= 1
        lease.waiting -= 1
        if not lease.waiting:
            self.leases.pop(lease, None)

    # -- coming to an end ---------------------------------------------------------------------

    def passed(self, lease: Lease, row: int) -> list[Place] | None:
        """Lets a queue go on after a record that was accepted, rejected or lost."""
        queue = lease.queues.pop(row)
        queue.running -= 1
        if queue.rows:
            self._list(queue)
        else:
            self._drop_if_empty(queue)
        return None

    def broke(self, lease: Lease, row: int) -> list[Place] | None:
        """Breaks the queue of a released record until it is confirmed; returns the rest."""
        queue = lease.queues[row]
        back: list[Place] | None = None
        if self._ordering and queue.key is not None:
            back = self._clear(queue)
            queue.broken += 1
            self._broken[lease.columns, row] = queue
        self.passed(lease, row)
        return back

    def lost(self, columns: Columns, row: int) -> list[Place]:
        """Clears the queue of a record whose lock is lost; returns the rest, which goes back."""
        if not self._ordering:
            return []
        key: Hashable = None if columns.keys is None else columns.keys[row]
        if self._ordering == PARTITION:
            key = PARTITION
        queue = self._queues.get(columns.key, _NO_QUEUES).get(key)
        if queue is None:
            return []
        back = self._clear(queue)
        self._drop_if_empty(queue)
        return back

    def confirmed(self, columns: Columns, rows: Iterable[int]) -> None:
        """Mends broken queues, because the coordinator knows the outcome of these records."""
        if not self._broken:
            return
        for row in rows:
            queue = self._broken.pop((columns, row), None)
            if queue is not None:
                queue.broken -= 1
                self._list(queue)
                self._drop_if_empty(queue)

    def _clear(self, queue: KeyQueue) -> list[Place]:
        rows, queue.rows = queue.rows, deque()
        return self._take_out([(lease, row) for _, lease, row in rows])

    def _drop_if_empty(self, queue: KeyQueue) -> None:
        if queue.key is None or queue.rows or queue.running or queue.broken:
            return
        partition, key = queue.key
        queues = self._queues.get(partition)
        if queues is not None and queues.get(key) is queue:
            del queues[key]
            if not queues:
                del self._queues[partition]

    def _take_out(self, rows: list[Place]) -> list[Place]:
        for lease, row in rows:
            lease.states[row] = SETTLED
            self._left(lease)
        return rows

    # -- giving back --------------------------------------------------------------------------

    def give_back(self, lease: Lease, rows: Iterable[int]) -> list[Place]:
        """Takes waiting rows out of their queues, with order also those that follow."""
        wanted = {(id(lease), row) for row in rows if lease.states[row] == WAITING}
        if not wanted:
            return []
        out: list[Place] = []
        for queue in self._queues_of(lease, wanted):
            kept: deque[tuple[int, Lease, int]] = deque()
            breaks = False
            for item in queue.rows:
                breaks = (breaks and bool(self._ordering)) or (id(item[1]), item[2]) in wanted
                if breaks:
                    out.append(item[1:])
                else:
                    kept.append(item)
            queue.rows = kept
            self._drop_if_empty(queue)
        return self._take_out(out)

    def _queues_of(self, lease: Lease, wanted: set[tuple[int, int]]) -> list[KeyQueue]:
        """Queues with rows of a lease; those without order stand in `_ready` and `_timed` alone."""
        found = list(self._queues.get(lease.columns.key, _NO_QUEUES).values())
        timed = (queue for _, _, queue in self._timed)
        found += [
            queue
            for queue in (*self._ready, *timed)
            if queue.key is None
            and queue.rows
            and (id(queue.rows[0][1]), queue.rows[0][2]) in wanted
        ]
        return found
