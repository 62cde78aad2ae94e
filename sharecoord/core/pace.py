"""How fast a member works, and what follows from it: how much it may hold, how far a window grows.

Pure, with the time as a value: the dispatcher and the what-if simulation go by the same rules
(design 5, fair dispatch).
"""

from __future__ import annotations

from dataclasses import dataclass, field

PREFETCH_MS = 200
"""A member holds what it works off in so long (design 5, fair dispatch)."""

PREFETCH_BYTES_MAX = 16 << 20
"""... but no more than this: beyond, memory traffic costs more than the deeper pipeline gives."""

PREFETCH_RECORDS_MAX = 12_000
"""The same for small records."""

CHAINED_RECORDS_MAX = 4_000
"""Beyond, it holds what waits for earlier records of its keys, up to so many: what comes after them
may be of keys that are free. As `HELD_MAX` in the SDK's demand."""

CHAINED_MS = 2_000
"""... and no more than it works off in so long."""

PACE_SLICE_MS = 50
"""Length of one measurement of a busy member's pace."""

BUSY_MS_MIN = 0.01
"""Less time of its own than this can not be told from none."""

BULK_MS = PREFETCH_MS // 2
"""A batch that takes less lets the pace grow by itself: twice as many records are prefetched."""

BULK_TRIAL_MS = 1_000
"""A trial with more records follows a batch that took no longer: so long the others wait with a
member that is slow and nothing else."""

BULK_TRIAL_RECORDS = 16
"""Trials begin with batches of so few: members with larger ones are not far from what they can do,
and twice as much would be taken away from others."""

BULK_GAIN = 0.75
"""A record of a larger batch takes so much of the time of one before, or less; half is the best."""

BULK_REST_MIN = 4
"""Batches before the first trial; after one that fails there are 16 times as many."""

BULK_REST_MAX = 1_024
"""... and at most so many: the records of a trial wait longer, and must be less than one of 100."""

PACE_WEIGHT = 0.3
"""Weight of a slower measurement; a faster one counts at once."""

WINDOW_PER_MEMBER = 4
"""A window that is not set by hand holds what its members may hold, and at least so many records
for each of them (design 5.4)."""

WINDOW_MAX = 100_000
"""Most records to which such a window grows by itself."""

WINDOW_GROWTH_RATIO = 1.05
"""A window follows its members in steps: each step looks at all partitions of the group."""


@dataclass(slots=True)
class Bulk:
    """How many records a member may hold because a batch of them costs little more than one.

    A program that writes each batch to a database pays by the batch. Its pace with one record at a
    time says that one is all it can work off, for ever; so now and then it gets twice as many, and
    keeps them when a record takes less time then.
    """

    good: int = 0
    """Records of the largest batch that was worth it; 0 = none."""
    each_ms: float = 0.0
    """What a record of it took, or of the batch before the trial."""
    trial: int = 0
    """Records that are tried; 0 = none."""
    rest: int = BULK_REST_MIN
    """Batches until the next trial."""
    pause: int = BULK_REST_MIN
    """Batches that were waited for the trial before."""

    def worked(self, records: int, busy_ms: float, *, drained: bool, lock_ms: float) -> None:
        """The member has worked off a batch; `drained` = all that it held."""
        each_ms = busy_ms / records
        if self.trial:
            self._tried(records, each_ms, drained=drained)
        elif self.good and each_ms > 2 * self.each_ms and 2 * records > self.good:
            self.good = 0  # another work than before
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
    """The slice began with a delivery to an idle member, so all its work lies inside."""
    bulk: Bulk = field(default_factory=Bulk)

    def started(self, now_ms: int) -> None:
        """The member got something to do."""
        if not self.busy:
            self.busy = self.from_idle = True
            self.slice_start_ms = now_ms
            self.settled = 0

    def worked(self, records: int, busy_ms: float, *, drained: bool, lock_ms: float) -> None:
        """The member settled records in so much time of its own, as it says.

        Args:
            records: How many.
            busy_ms: How long it had records since it last said so.
            drained: Whether it holds nothing more.
            lock_ms: For how long it may hold them.
        """
        self.bulk.worked(records, busy_ms, drained=drained, lock_ms=lock_ms)
        self.settled += records
        self.busy_ms += busy_ms
        if self.busy_ms >= PACE_SLICE_MS or not self.records_per_ms:
            self._learn(self.settled / max(self.busy_ms, BUSY_MS_MIN))
            self.settled, self.busy_ms = 0, 0.0

    def finished(self, records: int, now_ms: int, *, drained: bool) -> None:
        """The member settled records; `drained` = it holds nothing more.

        For members that do not say how long they had them: what the way there and back takes is
        in the time, so a slow one seems slower still.
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
    def prefetch(self) -> int:
        """Records that it works off in PREFETCH_MS, or in a batch that is worth it; 1 at least."""
        return max(1, int(self.records_per_ms * PREFETCH_MS), self.bulk.good, self.bulk.trial)

    @property
    def chained_max(self) -> int:
        """Records behind earlier ones of their keys that it may hold beside its prefetch."""
        return min(CHAINED_RECORDS_MAX, int(self.records_per_ms * CHAINED_MS))


def prefetch_max(record_bytes: int) -> int:
    """Most records that a member prefetches, however fast it is.

    Args:
        record_bytes: Mean size of its records; 0 counts as 1.
    """
    return max(1, min(PREFETCH_RECORDS_MAX, PREFETCH_BYTES_MAX // (record_bytes or 1)))


def grown_window(record_locks_max: int, holds_total: int, members: int) -> int:
    """How many records a window holds that is not set by hand: what the members' pace needs.

    Args:
        record_locks_max: The least, in records.
        holds_total: How many records the members together may hold: what each works off in 200 ms,
            or its max.poll.records when it gives one.
        members: How many there are.
    """
    return max(
        record_locks_max,
        min(WINDOW_MAX, holds_total),
        min(WINDOW_MAX, WINDOW_PER_MEMBER * members),
    )


def window_follows(present: int, wanted: int) -> bool:
    """Whether a window of `present` records is changed for one of `wanted`."""
    return wanted > present * WINDOW_GROWTH_RATIO or wanted * 2 < present
