"""Records that wait for more than a free slot: for an earlier one of their key, a rate, a breaker.

Handlers with `ordering`, a rate or a breaker have a `Line` of their own, so that what holds one
back holds no other. Its records stand in *lanes*: one for each key of a partition
(`ordering="key"`), one for a partition (`ordering="partition"`), one for each record that has no
order. Of a lane with order one record runs at a time, in order of offset.

When a record is not accepted or rejected, its lane *breaks*: the later ones go back unseen. What
comes of the lane until the coordinator has answered was sent before it knew, and goes back as well
(in a group with `share.ordering` it takes the rest of a chain back itself).
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from sharecoord_sdk._core.columns import IN_FLIGHT, SETTLED, Columns, PartitionKey, Span

from .gates import BreakerState, KeyRates, Rate
from .options import KEY, PARTITION

if TYPE_CHECKING:
    from .handlers import Handler
    from .leases import Lease

#: State of a row that stands in a lane.
WAITING: Final = 249

#: A row of a lease.
Place = tuple["Lease", int]

_NO_LANES: Final[dict[Hashable, Lane]] = {}


class Lane:
    """Records that follow one another: (offset, lease, row), ascending."""

    __slots__ = ("broken", "is_listed", "key", "rows", "running")

    def __init__(self, key: tuple[PartitionKey, Hashable] | None) -> None:
        #: Where it is kept, or None: a record without order.
        self.key = key
        self.rows: deque[tuple[int, Lease, int]] = deque()
        #: Records that a handler has.
        self.running = 0
        #: Records that failed, and whose outcome the coordinator has not confirmed.
        self.broken = 0
        #: Whether it stands among those that may go on.
        self.is_listed = False


class Line:
    """The records of one handler that wait, and what they wait for.

    Args:
        handler: Whose records these are.
    """

    def __init__(self, handler: Handler) -> None:
        behaviour = handler.behaviour
        self.handler = handler
        self._ordering = behaviour.ordering
        self._rate = Rate(behaviour.rate_per_s) if behaviour.rate_per_s else None
        per_key = behaviour.rate_per_key_per_s
        self._key_rates = KeyRates(per_key) if per_key else None
        self.breaker = BreakerState(behaviour.breaker) if behaviour.breaker else None
        self._is_gated = bool(self._rate or self._key_rates or self.breaker)
        self._lanes: dict[PartitionKey, dict[Hashable, Lane]] = {}
        self._ready: deque[Lane] = deque()
        # Lanes that wait for the rate of their key: (when, number, lane).
        self._timed: list[tuple[float, int, Lane]] = []
        self._numbers = 0
        #: Leases with rows that wait, in order of arrival.
        self.leases: dict[Lease, None] = {}
        self._broken: dict[tuple[Columns, int], Lane] = {}
        self._is_closed = False
        self._now = 0.0
        #: Records that stand in lanes.
        self.waiting = 0

    # -- coming in ----------------------------------------------------------------------------

    def add(self, lease: Lease) -> list[Place]:
        """Puts the rows of a lease into their lanes; what comes of broken lanes goes back."""
        span = lease.span
        lanes = self._lanes.setdefault(span.columns.key, {})
        keys = span.columns.keys
        offsets = span.offsets()
        whole, by_key = self._ordering == PARTITION, self._by_key
        back: list[int] = []
        for row, offset in enumerate(offsets, span.start):
            key: Hashable = None if keys is None else keys[row]
            if whole:
                key = PARTITION
            elif key is None or not by_key:
                self._push(Lane(None), offset, lease, row)
                continue
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane((span.columns.key, key))
            if lane.broken:
                back.append(row)
            else:
                self._push(lane, offset, lease, row)
        lease.states[span.start : span.stop] = bytes((WAITING,)) * len(span)
        self.waiting += len(span)
        lease.waiting = len(span)
        self.leases[lease] = None
        span.start = span.stop
        return self._take_out([(lease, row) for row in back])

    @property
    def _by_key(self) -> bool:
        return self._ordering == KEY or self._key_rates is not None

    def _push(self, lane: Lane, offset: int, lease: Lease, row: int) -> None:
        item = (offset, lease, row)
        if lane.rows and lane.rows[-1][0] > offset:
            # A redelivery: it comes before what waits.
            rows = list(lane.rows)
            insort(rows, item, key=itemgetter(0))
            lane.rows = deque(rows)
        else:
            lane.rows.append(item)
        if not lane.is_listed:
            self._list(lane)

    def _may_go(self, lane: Lane) -> bool:
        """Whether nothing of the lane has to end before its next record."""
        return not (lane.broken or (lane.running and self._ordering))

    def _list(self, lane: Lane) -> None:
        if lane.rows and not lane.is_listed and self._may_go(lane):
            lane.is_listed = True
            self._ready.append(lane)

    # -- going out ----------------------------------------------------------------------------

    @property
    def startable(self) -> int:
        """About how many handlers may start, as of the last `peek`; 0 when that found none."""
        return 0 if self._is_closed else len(self._ready)

    def opens_at(self) -> float:
        """When a record may start that waits for time alone; infinity when none does."""
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
            self._is_closed = self._is_held(now)
            while self._timed and self._timed[0][0] <= now:
                ready.append(heapq.heappop(self._timed)[2])
            if self._is_closed:
                return None
        while ready:
            lane = ready[0]
            if lane.rows and self._may_go(lane):
                at = self._key_opens_at(lane)
                if at <= now:
                    return lane.rows[0][1]
                self._numbers += 1
                heapq.heappush(self._timed, (at, self._numbers, lane))
            else:
                lane.is_listed = False
            ready.popleft()
        return None

    def _is_held(self, now: float) -> bool:
        if self.breaker is not None and self.breaker.holds:
            return True
        return self._rate is not None and self._rate.opens_at() > now

    def _key_opens_at(self, lane: Lane) -> float:
        if self._key_rates is None or lane.key is None:
            return -math.inf
        return self._key_rates.opens_at(lane.key)

    def start(self) -> Place:
        """Takes the record that `peek` found."""
        lane = self._ready.popleft()
        _, lease, row = lane.rows.popleft()
        lane.is_listed = False
        lane.running += 1
        lease.lanes[row] = lane
        lease.states[row] = IN_FLIGHT
        self._left(lease)
        if self._is_gated:
            self._count_start(lane, lease, row)
        if lane.rows and not self._ordering:
            self._list(lane)
        return lease, row

    def _count_start(self, lane: Lane, lease: Lease, row: int) -> None:
        if self._rate is not None:
            self._rate.take(1, self._now)
        if self._key_rates is not None and lane.key is not None:
            self._key_rates.take(lane.key, self._now)
        if self.breaker is not None and self.breaker.started():
            lease.probe = row

    def start_batch(self, now: float) -> list[Place]:
        """Takes the next records, several of a lane in order, as many as one call takes."""
        taken: list[Place] = []
        room = self.handler.batch
        if self._rate is not None:
            room = min(room, self._rate.room(now))
        if self.breaker is not None and self.breaker.state == BreakerState.PROBING:
            room = 1
        while len(taken) < room and self.peek(now) is not None:
            lane = self._ready[0]
            taken.append(self.start())
            while lane.rows and lane.running and len(taken) < room and self._ordering:
                if self._key_opens_at(lane) > now:
                    break
                # In one call they are one after the other.
                self._ready.appendleft(lane)
                taken.append(self.start())
        return taken

    def _left(self, lease: Lease) -> None:
        self.waiting -= 1
        lease.waiting -= 1
        if not lease.waiting:
            self.leases.pop(lease, None)

    # -- coming to an end ---------------------------------------------------------------------

    def passed(self, lease: Lease, row: int) -> list[Place] | None:
        """A handler is done with a record, and its lane goes on."""
        lane = lease.lanes.pop(row)
        lane.running -= 1
        if lane.rows:
            self._list(lane)
        else:
            self._drop_if_empty(lane)
        return None

    def broke(self, lease: Lease, row: int) -> list[Place] | None:
        """A record was released, and the coordinator will confirm it: what follows it goes back."""
        lane = lease.lanes[row]
        back: list[Place] | None = None
        if self._ordering and lane.key is not None:
            back = self._clear(lane)
            lane.broken += 1
            self._broken[lease.columns, row] = lane
        self.passed(lease, row)
        return back

    def lost(self, columns: Columns, row: int) -> list[Place]:
        """A record that a handler has or had is no longer ours: what follows it goes back."""
        if not self._ordering:
            return []
        key: Hashable = None if columns.keys is None else columns.keys[row]
        if self._ordering == PARTITION:
            key = PARTITION
        lane = self._lanes.get(columns.key, _NO_LANES).get(key)
        if lane is None:
            return []
        back = self._clear(lane)
        self._drop_if_empty(lane)
        return back

    def confirmed(self, columns: Columns, rows: Iterable[int]) -> None:
        """The coordinator knows what became of records: what comes of their lanes is current."""
        if not self._broken:
            return
        for row in rows:
            lane = self._broken.pop((columns, row), None)
            if lane is not None:
                lane.broken -= 1
                self._list(lane)
                self._drop_if_empty(lane)

    def _clear(self, lane: Lane) -> list[Place]:
        rows, lane.rows = lane.rows, deque()
        return self._take_out([(lease, row) for _, lease, row in rows])

    def _drop_if_empty(self, lane: Lane) -> None:
        if lane.key is None or lane.rows or lane.running or lane.broken:
            return
        partition, key = lane.key
        lanes = self._lanes.get(partition)
        if lanes is not None and lanes.get(key) is lane:
            del lanes[key]
            if not lanes:
                del self._lanes[partition]

    def _take_out(self, rows: list[Place]) -> list[Place]:
        """Marks rows that have left their lanes."""
        for lease, row in rows:
            lease.states[row] = SETTLED
            self._left(lease)
        return rows

    # -- giving back --------------------------------------------------------------------------

    def waiting_spans(self) -> list[Span]:
        """What stands in lanes."""
        return [span for lease in self.leases for span in lease.spans_in(WAITING)]

    def give_back(self, lease: Lease, rows: Iterable[int]) -> list[Place]:
        """Takes rows that wait out of their lanes, and with order what follows them there."""
        wanted = {(id(lease), row) for row in rows if lease.states[row] == WAITING}
        if not wanted:
            return []
        out: list[Place] = []
        for lane in self._lanes_of(lease, wanted):
            kept: deque[tuple[int, Lease, int]] = deque()
            breaks = False
            for item in lane.rows:
                breaks = (breaks and bool(self._ordering)) or (id(item[1]), item[2]) in wanted
                if breaks:
                    out.append(item[1:])
                else:
                    kept.append(item)
            lane.rows = kept
            self._drop_if_empty(lane)
        return self._take_out(out)

    def _lanes_of(self, lease: Lease, wanted: set[tuple[int, int]]) -> list[Lane]:
        """Lanes with rows of a lease; those without order stand in `_ready` alone."""
        found = list(self._lanes.get(lease.columns.key, _NO_LANES).values())
        timed = (lane for _, _, lane in self._timed)
        found += [
            lane
            for lane in (*self._ready, *timed)
            if lane.key is None and lane.rows and (id(lane.rows[0][1]), lane.rows[0][2]) in wanted
        ]
        return found
