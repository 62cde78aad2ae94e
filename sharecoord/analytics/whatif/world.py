"""What a simulation is made of: virtual time, logs, share-partitions, members, a meter.

Times are milliseconds of virtual time. Offsets and states are those of the real core.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sharecoord.analytics.whatif.work import Arrivals, ServiceTimes, Stretch
from sharecoord.core.changes import PartitionHead
from sharecoord.core.partition.decisions import AcknowledgedRange, AcquiredRange
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, RecordState
from sharecoord.core.window.window import Keys

BACKLOG_RECORDS: Final = 10**12
"""A log without end: more than any simulation works off."""

KEY_BLOCK: Final = 1_024
"""Keys are drawn for so many records at once."""

DWELL_SAMPLES: Final = 8
"""Of the records of one run of offsets whose waiting is looked at: all are handed out together."""

BUCKET_RATIO: Final = 1.02
"""Width of a bucket of waiting times: percentiles are exact to 2 %."""

WAIT_MS_MIN: Final = 0.01
"""Shorter waits count as this one."""


class Clock:
    """Virtual time: calls in the order of their times, then of their making."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def after(self, wait_ms: float, call: Callable[..., None], *args: Any) -> None:
        """Calls in `wait_ms`."""
        heapq.heappush(self._heap, (self.now_ms + wait_ms, next(self._numbers), call, args))

    def run(self, until_ms: float) -> None:
        """Goes on to a time; what is due later stays."""
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, call, args = heapq.heappop(self._heap)
            call(*args)
        self.now_ms = until_ms


class Log:
    """The log of one partition: its end, and when what is in it came.

    Args:
        batch_records: Most records of a producer batch; what is appended at once begins a new one.
        keys: How many different keys there are; 0 = records have none.
        seed: Of the keys.
    """

    def __init__(self, batch_records: int, keys: int, seed: str) -> None:
        self.end_offset = 0
        self.batch_records = batch_records
        self._came_ms: list[float] = []
        self._ends: list[int] = []
        self._keys = keys
        self._seed = seed
        self._block: tuple[int, bytes] = (-1, b"")

    def append(self, records: int, now_ms: float) -> None:
        """Records arrive."""
        self.end_offset += records
        self._came_ms.append(now_ms)
        self._ends.append(self.end_offset)

    def fill(self) -> None:
        """There is a backlog without end, which says nothing of when records came."""
        self.end_offset = BACKLOG_RECORDS

    def came_ms(self, offset: int) -> float | None:
        """When a record came; None of a backlog."""
        return self._came_ms[bisect_right(self._ends, offset)] if self._ends else None

    def batch_end(self, offset: int) -> int:
        """Last offset of the producer batch that a record is in."""
        begin, end = 0, self.end_offset
        if self._ends:
            at = bisect_right(self._ends, offset)
            begin, end = self._ends[at - 1] if at else 0, self._ends[at]
        batch = (offset - begin) // self.batch_records + 1
        return min(begin + batch * self.batch_records, end) - 1

    def keys_of(self, first: int, last: int) -> Keys | None:
        """Key hashes of records of one block of `KEY_BLOCK`; None where they have no keys."""
        if not self._keys:
            return None
        number = first // KEY_BLOCK
        if self._block[0] != number:
            generator = random.Random(f"{self._seed} {number}")
            hashes = (generator.randrange(self._keys) + 2 for _ in range(KEY_BLOCK))
            self._block = number, b"".join(key.to_bytes(8, "big") for key in hashes)
        start = first - number * KEY_BLOCK
        return Keys(first, self._block[1][start * 8 : (start + last - first + 1) * 8])


class Share:
    """A share-partition of the simulated group.

    Args:
        number: Of the partition.
        log: What is handed out.
        settings: Of the group.
        totals: Where the records are counted that members hold in all share-partitions.
    """

    def __init__(
        self, number: int, log: Log, settings: PartitionSettings, totals: dict[str, int]
    ) -> None:
        self.number = number
        self.log = log
        head = PartitionHead(0, 0, -1, 0, 0)
        self.partition = SharePartition(head, owner_epoch=1, settings=settings)
        self.window = self.partition.window
        self.partition.count_into(totals)
        self.expiry_armed = False

    @property
    def fresh(self) -> int:
        """Records beyond the window."""
        return self.log.end_offset - self.window.end_offset


class Piece(NamedTuple):
    """A run of records that a member was handed."""

    share: Share
    range: AcquiredRange
    handed_ms: float

    @property
    def records(self) -> int:
        """How many."""
        return self.range.last - self.range.first + 1

    @property
    def is_held(self) -> bool:
        """Whether the lock on its first record is still the member's."""
        found = self.share.window.ranges.get(self.range.first)
        return (
            found is not None
            and found[2].state is RecordState.ACQUIRED
            and found[2].lock_token == self.range.lock_token
        )

    def split(self, records: int) -> tuple[Piece, Piece]:
        """The first so many records, and the others."""
        cut = self.range.first + records
        left, right = self.range._replace(last=cut - 1), self.range._replace(first=cut)
        return self._replace(range=left), self._replace(range=right)


@dataclass(eq=False, slots=True)
class Member:
    """A worker: it handles one record after the other."""

    number: int
    member_id: str
    times: ServiceTimes
    position: int = 0
    """Records that it has begun so far: its place among the times."""

    def begin(self, records: int, now_ms: float, overhead_ms: float) -> Stretch:
        """Begins to work on records, each of which takes so much besides its handler."""
        first, self.position = self.position, self.position + records
        work_ms = self.times.until(self.position) - self.times.until(first)
        factor = 1 + records * overhead_ms / work_ms
        return Stretch(self.times, first, records, now_ms, factor)


class Failures:
    """Which deliveries fail: each with the same probability."""

    def __init__(self, ratio: float, seed: int) -> None:
        self._ratio = ratio
        self._random = random.Random(f"failures {seed}")
        self._left = self._draw()

    def acknowledge(self, pieces: Iterable[Piece]) -> dict[Share, list[AcknowledgedRange]]:
        """What a member says of records, by share-partition, in ascending order."""
        said: dict[Share, list[AcknowledgedRange]] = {}
        for piece in pieces:
            first, last, token = piece.range.first, piece.range.last, piece.range.lock_token
            ranges = said.setdefault(piece.share, [])
            while self._left <= last - first:
                failed = first + int(self._left)
                if failed > first:
                    accept = AcknowledgeType.ACCEPT
                    ranges.append(AcknowledgedRange(first, failed - 1, accept, token))
                release = AcknowledgeType.RELEASE
                ranges.append(AcknowledgedRange(failed, failed, release, token))
                first = failed + 1
                self._left = self._draw()
            if first <= last:
                self._left -= last - first + 1
                ranges.append(AcknowledgedRange(first, last, AcknowledgeType.ACCEPT, token))
        for ranges in said.values():
            ranges.sort()
        return said

    def _draw(self) -> float:
        """Deliveries that succeed until the next one that fails."""
        if not self._ratio:
            return math.inf
        if self._ratio >= 1:
            return 0
        return math.log(1 - self._random.random()) // math.log(1 - self._ratio)


@dataclass(slots=True)
class Meter:
    """Counts what happens within the measured time.

    Attributes:
        begin_ms: First moment of the measured time.
        end_ms: First moment after it.
        records: Records whose handler ended, by member.
        busy_ms: Time of handlers, all members together.
        expired: Records whose lock ended by itself.
        refused: Records of which an acknowledgement was refused: the lock was lost.
    """

    begin_ms: float
    end_ms: float
    records: list[int]
    busy_ms: float = 0.0
    expired: int = 0
    refused: int = 0
    _waits: Counter[int] = field(default_factory=Counter)

    def covers(self, now_ms: float) -> bool:
        """Whether a moment lies in the measured time."""
        return self.begin_ms <= now_ms < self.end_ms

    def works(self, member: Member, stretch: Stretch, pieces: Sequence[Piece]) -> None:
        """A member begins to work on records; what lies in the measured time counts."""
        if stretch.ends_ms < self.begin_ms or stretch.begins_ms >= self.end_ms:
            return
        done = stretch.done_by(self.end_ms) - stretch.done_by(self.begin_ms)
        self.records[member.number] += done
        inside_ms = min(stretch.ends_ms, self.end_ms) - max(stretch.begins_ms, self.begin_ms)
        self.busy_ms += inside_ms / stretch.factor
        before = 0
        for piece in pieces:
            self._wait(piece, stretch, before)
            before += piece.records

    def _wait(self, piece: Piece, stretch: Stretch, before: int) -> None:
        step = max(1, piece.records // DWELL_SAMPLES)
        for at in range(0, piece.records, step):
            begins_ms = stretch.begin_of(before + at)
            if not self.covers(begins_ms):
                continue
            came_ms = piece.share.log.came_ms(piece.range.first + at)
            wait_ms = begins_ms - (piece.handed_ms if came_ms is None else came_ms)
            bucket = math.log(max(wait_ms, WAIT_MS_MIN), BUCKET_RATIO)
            self._waits[round(bucket)] += min(step, piece.records - at)

    def dwell_ms(self, percent: float) -> float | None:
        """A percentile of the waiting times; None when no handler began."""
        left = math.ceil(sum(self._waits.values()) * percent / 100)
        for bucket in sorted(self._waits):
            left -= self._waits[bucket]
            if left <= 0:
                return float(BUCKET_RATIO**bucket)
        return None


class World:
    """A group at work: subclasses hand out.

    Args:
        settings: Of the group's share-partitions.
        logs: One per partition.
        members: Who works.
        failures: Which deliveries fail.
        meter: Counts.
        overhead_ms: What a record takes a member besides its handler, on average.
        seed: Of the delays.
    """

    def __init__(
        self,
        settings: PartitionSettings,
        logs: Sequence[Log],
        members: Sequence[Member],
        failures: Failures,
        meter: Meter,
        overhead_ms: float,
        seed: int,
    ) -> None:
        self.clock = Clock()
        self.held: dict[str, int] = {}
        self.shares = [Share(at, log, settings, self.held) for at, log in enumerate(logs)]
        self.members = list(members)
        self.by_id = {member.member_id: member for member in members}
        self.failures = failures
        self.meter = meter
        self._overhead_ms = overhead_ms
        self.random = random.Random(f"delays {seed}")

    @property
    def now_ms(self) -> int:
        """The core's time."""
        return int(self.clock.now_ms)

    def delay(self, mean_ms: float) -> float:
        """A delay between half and one and a half of its mean."""
        return mean_ms * (0.5 + self.random.random())

    # -- what subclasses do ---------------------------------------------------------------------

    def start(self, member: Member) -> None:
        """A member begins to ask for records."""
        raise NotImplementedError

    def has_more(self, share: Share) -> None:
        """There may be more to hand out than before."""
        raise NotImplementedError

    def timed_out(self, member: Member) -> None:
        """Locks of a member ended by themselves."""

    # -- what is common -------------------------------------------------------------------------

    def feed(self, share: Share, arrivals: Arrivals) -> None:
        """Appends to a partition's log what arrives, in time."""
        found = next(arrivals, None)
        if found is not None:
            at_ms, records = found
            self.clock.after(at_ms - self.clock.now_ms, self._arrived, share, records, arrivals)

    def _arrived(self, share: Share, records: int, arrivals: Arrivals) -> None:
        if records:
            share.log.append(records, self.clock.now_ms)
            self.has_more(share)
        self.feed(share, arrivals)

    def work(self, member: Member, pieces: Sequence[Piece]) -> float:
        """A member begins to work on records; returns how long it will, in milliseconds.

        What records take besides their handlers is another value from poll to poll, as all
        delays are: so members do not stay in step with each other for ever.
        """
        records = sum(piece.records for piece in pieces)
        stretch = member.begin(records, self.clock.now_ms, self.delay(self._overhead_ms))
        self.meter.works(member, stretch, pieces)
        return stretch.ends_ms - stretch.begins_ms

    def settle(self, member: Member, share: Share, ranges: Sequence[AcknowledgedRange]) -> None:
        """An acknowledgement takes effect."""
        decision = share.partition.decide_acknowledge(self.now_ms, member.member_id, ranges)
        if self.meter.covers(self.clock.now_ms):
            self.meter.refused += sum(o.last - o.first + 1 for o in decision.exceptions)
        share.partition.apply(decision)

    def arm_expiry(self, share: Share) -> None:
        """Sees to it that locks end when their time is over."""
        deadline_ms = share.window.next_deadline_ms()
        if deadline_ms is not None and not share.expiry_armed:
            share.expiry_armed = True
            wait_ms = max(deadline_ms - self.clock.now_ms, 0.0)
            self.clock.after(wait_ms, self._expire, share)

    def _expire(self, share: Share) -> None:
        share.expiry_armed = False
        acquired = share.window.acquired
        decision = share.partition.decide_expire(math.ceil(self.clock.now_ms))
        share.partition.apply(decision)
        if decision.timed_out:
            if self.meter.covers(self.clock.now_ms):
                self.meter.expired += acquired - share.window.acquired
            for member_id in sorted(decision.timed_out):
                self.timed_out(self.by_id[member_id])
            self.has_more(share)
        self.arm_expiry(share)
