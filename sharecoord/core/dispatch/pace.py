"""The pace of members, and from it the records that they may hold and the size of windows.

The dispatcher and the what-if simulation go by the same rules (design 5, fair dispatch).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharecoord.core.limits import DELIVERY_BYTES_MAX

PREFETCH_MS = 200
"""A member may hold the records that it works off in this time."""

PREFETCH_BYTES_MAX = 16 << 20
"""Most bytes of a prefetch: beyond, memory traffic costs more than a deeper pipeline gives."""

PREFETCH_RECORDS_MAX = 32_000
"""The limit of `PREFETCH_BYTES_MAX` for small records: four messages of nearly 1 MiB at 100 B."""

REFILL_MS = 5
"""A member that has enough gets more when it has room for what it works off in this time: messages
of fewer records would cost more than the records, and a free handler never lacks more than that."""

REFILL_PART = 4
"""A member has enough while it holds more than all but this part of what it may hold."""

FIRST_RECORDS_MAX = 500
"""Most records of a new member that is alone: those of one poll of its program (the default of
max.poll.records)."""

CHAINED_RECORDS_MAX = 4_000
"""Most records beside its prefetch that a member holds and that wait for earlier records of their
keys: records behind them may be of keys that are free. As `HELD_MAX` in the SDK's demand."""

BATCH_WAIT_MS = 20
"""A member waits for no longer than this time of its own work for room for a whole record batch.
Members that wait are looked at in each turn, so they must be few, and soon served."""

CHAINED_MS = 2_000
"""A member holds no more such records than it works off in this time."""

PACE_SLICE_MS = 50
"""Length of one measurement of a busy member's pace."""

PACE_SLICE_HOLDS = 4
"""A measurement ends early once the member has worked off this many times the records that it may
hold: three quarters of them it got and worked off within it. So a fast member whose first record
took long, in a cold program, does not get few records at a time until it has worked for 50 ms."""

BUSY_MS_MIN = 0.01
"""A shorter working time can not be told from none."""

BULK_MS = PREFETCH_MS // 2
"""A batch that takes less time lets the pace grow by itself: twice as many are prefetched."""

BULK_TRIAL_MS = 1_000
"""Longest batch before a trial: the records of a slower member wait long enough already."""

BULK_TRIAL_RECORDS = 16
"""Trials begin with batches of no more records: a member with larger ones is near its best, and the
others would lack twice as many."""

BULK_GAIN = 0.75
"""A trial is worth it when a record takes at most this part of its time before; 0.5 is best."""

BULK_REST_MIN = 4
"""Batches before the first trial; 16 times as many after one that fails."""

BULK_REST_MAX = 1_024
"""Most batches between trials: the records of a trial wait longer, and must be below 1 %."""

PACE_WEIGHT = 0.3
"""Weight of a slower measurement; a faster one counts at once."""

WINDOW_PER_MEMBER = 4
"""Least room for each member in a window that is not set by hand (design 5.4)."""

WINDOW_MAX = 100_000
"""Most records to which such a window grows by itself."""

WINDOW_GROWTH_RATIO = 1.05
"""A window follows its members in steps: each step looks at all partitions of the group."""


@dataclass(slots=True)
class Bulk:
    """How many records a member may hold because a batch of them costs little more than one.

    A program that writes each batch to a database pays by the batch. Measured with one record at a
    time, such a program would get one record at a time for ever. So now and then it gets twice as
    many, and goes on with them when a record then takes less time.
    """

    good: int = 0
    """Records of the largest batch that was worth it; 0 = none."""
    each_ms: float = 0.0
    """Time of a record in that batch, or in the batch before the trial."""
    trial: int = 0
    """Records of the trial under way; 0 = none."""
    rest: int = BULK_REST_MIN
    """Batches until the next trial."""
    pause: int = BULK_REST_MIN
    """Batches before the last trial."""

    def worked(self, records: int, busy_ms: float, *, drained: bool, lock_ms: float) -> None:
        """The member has worked off a batch; `drained` = all that it held."""
        each_ms = busy_ms / records
        if self.trial:
            self._tried(records, each_ms, drained=drained)
        elif self.good and each_ms > 2 * self.each_ms and 2 * records > self.good:
            self.good = 0  # the work has changed
        elif drained and busy_ms >= BULK_MS and self.good <= records <= BULK_TRIAL_RECORDS:
            if self.rest:
                self.rest -= 1
            else:
                self.each_ms, self.trial = each_ms, 2 * records
        if busy_ms > min(BULK_TRIAL_MS, lock_ms / 4):
            self.trial = 0

    def _tried(self, records: int, each_ms: float, *, drained: bool) -> None:
        if drained and records < self.trial:
            return  # there was no more
        if drained and each_ms <= BULK_GAIN * self.each_ms:
            self.good, self.each_ms, self.trial = records, each_ms, 2 * records
            return
        self.trial = 0
        self.rest = self.pause = min(16 * self.pause, BULK_REST_MAX)


@dataclass(slots=True)
class Pace:
    """How fast a member works, learnt from its own acknowledgements."""

    records_per_ms: float = 0.0
    slice_start_ms: int = 0
    settled: int = 0
    busy_ms: float = 0.0
    busy: bool = False
    from_idle: bool = False
    """Whether the slice began with a delivery to an idle member, so all its work lies inside."""
    bulk: Bulk = field(default_factory=Bulk)
    forgotten: bool = False
    """Whether a lock of the member ended by itself: the learnt pace was wrong."""

    def started(self, now_ms: int) -> None:
        """The member got records."""
        if not self.busy:
            self.busy = self.from_idle = True
            self.slice_start_ms = now_ms
            self.settled = 0

    def worked(
        self, records: int, busy_ms: float, *, holds: int, drained: bool, lock_ms: float
    ) -> None:
        """The member settled records; it had records for `busy_ms` since its last word.

        Args:
            records: How many it settled.
            busy_ms: Milliseconds of its own time.
            holds: How many it held before, or may hold, whichever is more.
            drained: Whether it holds nothing more.
            lock_ms: For how long it may hold records.
        """
        self.bulk.worked(records, busy_ms, drained=drained, lock_ms=lock_ms)
        self.settled += records
        self.busy_ms += busy_ms
        is_long = self.busy_ms >= PACE_SLICE_MS or self.settled >= PACE_SLICE_HOLDS * holds
        if is_long or not self.records_per_ms:
            self._learn(self.settled / max(self.busy_ms, BUSY_MS_MIN))
            self.settled, self.busy_ms = 0, 0.0

    def finished(self, records: int, now_ms: int, *, drained: bool) -> None:
        """As `worked`, for members that do not say how long they had records.

        The way there and back is in the measured time, so a slow member seems slower still.
        """
        self.settled += records
        elapsed = now_ms - self.slice_start_ms
        if elapsed >= PACE_SLICE_MS or (drained and self.from_idle):
            self._learn(self.settled / max(elapsed, 1))
            self.slice_start_ms = now_ms
            self.settled = 0
            self.from_idle = False
        if drained:
            self.busy = False

    def _learn(self, pace: float) -> None:
        if pace > self.records_per_ms:
            self.records_per_ms = pace
        else:
            self.records_per_ms += PACE_WEIGHT * (pace - self.records_per_ms)

    @property
    def is_new(self) -> bool:
        """Whether nothing is known of the member, neither good nor bad."""
        return not (self.records_per_ms or self.forgotten)

    @property
    def prefetch(self) -> int:
        """Records that the member works off in PREFETCH_MS or in a worthwhile batch; 1 at least."""
        return max(1, int(self.records_per_ms * PREFETCH_MS), self.bulk.good, self.bulk.trial)

    def refill(self, ceiling: int, record_bytes: int) -> int:
        """Room for fewer records is left as it is; `ceiling` is what the member may hold.

        A member that holds few records has more room than that, so a lone record never waits.
        """
        return min(
            int(self.records_per_ms * REFILL_MS),
            DELIVERY_BYTES_MAX // (record_bytes or 1),
            ceiling // REFILL_PART,
        )

    @property
    def batch_wait_max(self) -> int:
        """Records for whose room the member may wait: what it works off in BATCH_WAIT_MS."""
        return int(self.records_per_ms * BATCH_WAIT_MS)

    @property
    def chained_max(self) -> int:
        """Records behind earlier ones of their keys that the member may hold on top."""
        return min(CHAINED_RECORDS_MAX, int(self.records_per_ms * CHAINED_MS))


def prefetch_max(record_bytes: int) -> int:
    """Most records that a member prefetches, however fast it is, by their mean size."""
    return max(1, min(PREFETCH_RECORDS_MAX, PREFETCH_BYTES_MAX // (record_bytes or 1)))


def grown_window(record_locks_max: int, holds_total: int, members: int) -> int:
    """The size of a window that is not set by hand, `record_locks_max` at the least.

    `holds_total` is the number of records that all members together may hold.
    """
    return max(
        record_locks_max,
        min(WINDOW_MAX, holds_total),
        min(WINDOW_MAX, WINDOW_PER_MEMBER * members),
    )


def window_follows(present: int, wanted: int) -> bool:
    """Whether a window of `present` records is changed for one of `wanted`."""
    return wanted > present * WINDOW_GROWTH_RATIO or wanted * 2 < present
