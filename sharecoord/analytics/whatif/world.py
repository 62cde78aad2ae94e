"""Parts of a simulation: virtual time, logs, share-partitions, members, a meter.

Times are milliseconds of virtual time. Offsets and states are those of the coordinator's core.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sharecoord.analytics.whatif.work import Arrivals, ServiceTimes, Stretch
from sharecoord.core.changes import PartitionHead
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.decisions import AcknowledgedRange, AcquiredRange
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, AcquireMode, RecordState
from sharecoord.core.window.range_state import RangeState
from sharecoord.core.window.window import Keys

BACKLOG_RECORDS: Final = 10**12
"""Length of a log without end: more than any simulation works off."""
KEY_BLOCK: Final = 1_024
"""Number of records whose keys are drawn at once."""
DWELL_SAMPLES: Final = 8
"""About how many records of a handed range are sampled for waiting times."""
BUCKET_RATIO: Final = 1.02
"""Width of a bucket of waiting times: percentiles are exact to 2 %."""
WAIT_MS_MIN: Final = 0.01
"""Shorter waits count as this one."""
NETWORK_MS: Final = 0.5
"""Time for one way between a member and its broker or coordinator, their threads included."""
JOIN_SPREAD_MS: Final = 400.0
"""Time within which all members begin: they start one after the other, and each waits for its own
heartbeat to be assigned partitions. Measured in Kafka: 42 of 50 within 444 ms, all in 733."""


class Clock:
    """Virtual time: calls in the order of their times, then in that of `after`."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def after(self, wait_ms: float, call: Callable[..., None], *args: Any) -> None:
        """Calls in `wait_ms`."""
        heapq.heappush(self._heap, (self.now_ms + wait_ms, next(self._numbers), call, args))

    def run(self, until_ms: float) -> None:
        """Makes the calls up to a time; later ones stay."""
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, call, args = heapq.heappop(self._heap)
            call(*args)
        self.now_ms = until_ms


class Log:
    """The log of one partition: its end, and the times at which its records came.

    Each `append` begins a new producer batch. With 0 `keys` records have none.
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
        """Makes a backlog without end, whose records have no times."""
        self.end_offset = BACKLOG_RECORDS

    def came_ms(self, offset: int) -> float | None:
        """The time at which a record came; None in a backlog."""
        return self._came_ms[bisect_right(self._ends, offset)] if self._ends else None

    def batch_end(self, offset: int) -> int:
        """Last offset of the producer batch of a record."""
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
    """A share-partition of the simulated group; `held` counts the records of each member."""

    def __init__(
        self, number: int, log: Log, settings: PartitionSettings, held: dict[str, int]
    ) -> None:
        self.number = number
        self.log = log
        head = PartitionHead(0, 0, -1, 0, 0)
        self.partition = SharePartition(head, owner_epoch=1, settings=settings)
        self.window = self.partition.window
        self.partition.count_into(held)
        self.expiry_armed = False

    @property
    def fresh(self) -> int:
        """Number of records beyond the window."""
        return self.log.end_offset - self.window.end_offset


class HandedRange(NamedTuple):
    """Consecutive records that a member was handed."""

    share: Share
    range: AcquiredRange
    handed_ms: float

    @property
    def records(self) -> int:
        """Number of records."""
        return self.range.last - self.range.first + 1

    @property
    def is_held(self) -> bool:
        """Whether the lock on its first record is still the member's."""
        entry = self.share.window.ranges.get(self.range.first)
        return (
            entry is not None
            and entry[2].state is RecordState.ACQUIRED
            and entry[2].lock_token == self.range.lock_token
        )

    def split(self, records: int) -> tuple[HandedRange, HandedRange]:
        """The first `records` records, and the others."""
        cut = self.range.first + records
        left, right = self.range._replace(last=cut - 1), self.range._replace(first=cut)
        return self._replace(range=left), self._replace(range=right)


Acknowledgements = Mapping[Share, Sequence[AcknowledgedRange]]
"""Acknowledged ranges by share-partition, in ascending order."""


@dataclass(eq=False, slots=True)
class Member:
    """A member of the group: it handles one record after the other."""

    number: int
    member_id: str
    times: ServiceTimes
    position: int = 0
    """Number of records that it has begun: its place among the times."""

    def begin(self, records: int, now_ms: float, overhead_ms: float) -> Stretch:
        """Begins to work on records, each of which takes `overhead_ms` besides its handler."""
        first, self.position = self.position, self.position + records
        work_ms = self.times.until(self.position) - self.times.until(first)
        factor = 1 + records * overhead_ms / work_ms
        return Stretch(self.times, first, records, now_ms, factor)


class Failures:
    """Deliveries that fail, each with the same probability."""

    def __init__(self, ratio: float, seed: int) -> None:
        self._ratio = ratio
        self._random = random.Random(f"failures {seed}")
        self._left = self._draw()

    def acknowledge(self, handed: Iterable[HandedRange]) -> Acknowledgements:
        """Accepts or releases all records."""
        by_share: dict[Share, list[AcknowledgedRange]] = {}
        for part in handed:
            first, last, token = part.range.first, part.range.last, part.range.lock_token
            ranges = by_share.setdefault(part.share, [])
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
        for ranges in by_share.values():
            ranges.sort()
        return by_share

    def _draw(self) -> float:
        """Number of deliveries that succeed before the next one that fails."""
        if not self._ratio:
            return math.inf
        if self._ratio >= 1:
            return 0
        return math.log(1 - self._random.random()) // math.log(1 - self._ratio)


@dataclass(slots=True)
class Meter:
    """Counts within the measured time."""

    begin_ms: float
    """First moment of the measured time."""
    end_ms: float
    """First moment after it."""
    records: list[int]
    """Records whose handler ended, by number of the member."""
    busy_ms: float = 0.0
    """Time of handlers, all members together."""
    expired: int = 0
    """Records whose lock ended by itself."""
    refused: int = 0
    """Records of which an acknowledgement was refused: the lock was lost."""
    _waits: Counter[int] = field(default_factory=Counter)

    def covers(self, now_ms: float) -> bool:
        """Whether a moment lies in the measured time."""
        return self.begin_ms <= now_ms < self.end_ms

    def works(self, member: Member, stretch: Stretch, handed: Sequence[HandedRange]) -> None:
        """A member begins to work on records; the part in the measured time counts."""
        if stretch.ends_ms < self.begin_ms or stretch.begins_ms >= self.end_ms:
            return
        done = stretch.done_by(self.end_ms) - stretch.done_by(self.begin_ms)
        self.records[member.number] += done
        inside_ms = min(stretch.ends_ms, self.end_ms) - max(stretch.begins_ms, self.begin_ms)
        self.busy_ms += inside_ms / stretch.factor
        before = 0
        for part in handed:
            self._wait(part, stretch, before)
            before += part.records

    def _wait(self, part: HandedRange, stretch: Stretch, before: int) -> None:
        step = max(1, part.records // DWELL_SAMPLES)
        for at in range(0, part.records, step):
            begins_ms = stretch.begin_of(before + at)
            if not self.covers(begins_ms):
                continue
            came_ms = part.share.log.came_ms(part.range.first + at)
            wait_ms = begins_ms - (part.handed_ms if came_ms is None else came_ms)
            bucket = math.log(max(wait_ms, WAIT_MS_MIN), BUCKET_RATIO)
            self._waits[round(bucket)] += min(step, part.records - at)

    def dwell_ms(self, percent: float) -> float | None:
        """A percentile of the waiting times; None when no handler began."""
        left = math.ceil(sum(self._waits.values()) * percent / 100)
        for bucket in sorted(self._waits):
            left -= self._waits[bucket]
            if left <= 0:
                return float(BUCKET_RATIO**bucket)
        return None


class World(ABC):
    """A group at work; subclasses hand out records.

    `overhead_ms` is the mean time that a record takes a member besides its handler, `seed` that of
    the delays.
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
        """The time in whole milliseconds, as the core takes it."""
        return int(self.clock.now_ms)

    def delay(self, mean_ms: float) -> float:
        """A delay between half and one and a half of its mean."""
        return mean_ms * (0.5 + self.random.random())

    # -- in subclasses --------------------------------------------------------------------------

    @abstractmethod
    def begin(self, member: Member) -> None:
        """A member begins to ask for records."""

    @abstractmethod
    def has_more(self, share: Share) -> None:
        """A share-partition may have more records to hand out than before."""

    def timed_out(self, member: Member) -> None:  # noqa: B027 - Kafka's broker does nothing then
        """Locks of a member ended by themselves."""

    # -- in both worlds -------------------------------------------------------------------------

    def start(self, member: Member) -> None:
        """Makes a member begin within `JOIN_SPREAD_MS`."""
        self.clock.after(self.random.random() * JOIN_SPREAD_MS, self.begin, member)

    def feed(self, share: Share, arrivals: Arrivals) -> None:
        """Appends arriving records to a partition's log, each at its time."""
        arrival = next(arrivals, None)
        if arrival is not None:
            at_ms, records = arrival
            self.clock.after(at_ms - self.clock.now_ms, self._arrived, share, records, arrivals)

    def _arrived(self, share: Share, records: int, arrivals: Arrivals) -> None:
        if records:
            share.log.append(records, self.clock.now_ms)
            self.has_more(share)
        self.feed(share, arrivals)

    def work(self, member: Member, handed: Sequence[HandedRange]) -> float:
        """A member begins to work on records; returns the milliseconds that it needs.

        The time besides the handlers differs from poll to poll, as all delays do: so members do not
        stay in step with each other for ever.
        """
        records = sum(part.records for part in handed)
        stretch = member.begin(records, self.clock.now_ms, self.delay(self._overhead_ms))
        self.meter.works(member, stretch, handed)
        return stretch.ends_ms - stretch.begins_ms

    def settle(self, member: Member, share: Share, ranges: Sequence[AcknowledgedRange]) -> None:
        """An acknowledgement takes effect."""
        decision = share.partition.decide_acknowledge(self.now_ms, member.member_id, ranges)
        if self.meter.covers(self.clock.now_ms):
            self.meter.refused += sum(o.last - o.first + 1 for o in decision.exceptions)
        share.partition.apply(decision)

    def acquire(
        self,
        share: Share,
        member_id: str,
        max_records: int,
        mode: AcquireMode,
        due: Sequence[tuple[int, int, RangeState]],
        fresh: Sequence[Run],
    ) -> list[HandedRange]:
        """A member acquires records: due ones, and fresh ones beyond the window."""
        decision = share.partition.decide_acquire(
            self.now_ms, member_id, max_records=max_records, mode=mode, due=due, fresh=fresh
        )
        share.partition.apply(decision)
        self._arm_expiry(share)
        now_ms = self.clock.now_ms
        return [HandedRange(share, acquired, now_ms) for acquired in decision.acquired]

    def _arm_expiry(self, share: Share) -> None:
        """Plans the end of the next locks whose time is over."""
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
        self._arm_expiry(share)
