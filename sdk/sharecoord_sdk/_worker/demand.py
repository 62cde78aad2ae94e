"""The number of records that a worker asks for beyond those that its handlers have.

Enough that no slot waits, no more than is worked off in `PREFETCH_S`: what waits here is locked,
and another member may be idle.
"""

from __future__ import annotations

from typing import Final

#: Seconds of work that a worker holds beyond what its handlers have.
PREFETCH_S: Final = 0.2
#: Most records that a worker holds beyond what its handlers have.
PREFETCH_MAX: Final = 12_000
#: Beyond that it holds what waits for earlier records of its keys, a rate or a breaker, up to so
#: many: what comes after them may be for free slots. They are worked off in so long.
HELD_MAX: Final = 4_000
HELD_S: Final = 2.0
#: Records that are asked for before anything is known of the handlers.
FIRST: Final = 64

_SLICE_S: Final = 0.05
_SLOWER_WEIGHT: Final = 0.3
_SHORTEST_S: Final = 0.001


class Pace:
    """The handlers' pace, learnt from what they finish."""

    def __init__(self) -> None:
        self.records_per_s = 0.0
        self._slice_start = 0.0
        self._finished = 0
        self._busy = False
        self._from_idle = False

    def started(self, now: float) -> None:
        """Notes that there is something to do."""
        if not self._busy:
            self._busy = self._from_idle = True
            self._slice_start = now
            self._finished = 0

    def finished(self, records: int, now: float, *, drained: bool) -> None:
        """Notes finished records; `drained` = there is nothing more to do."""
        self._finished += records
        elapsed_s = now - self._slice_start
        # A slice that began idle and ended so is a whole measurement, however short.
        if elapsed_s >= _SLICE_S or (drained and self._from_idle):
            pace = self._finished / max(elapsed_s, _SHORTEST_S)
            if pace > self.records_per_s:
                self.records_per_s = pace
            else:
                self.records_per_s += _SLOWER_WEIGHT * (pace - self.records_per_s)
            self._slice_start = now
            self._finished = 0
            self._from_idle = False
        if drained:
            self._busy = False

    @property
    def prefetch(self) -> int:
        """Records that are worked off in `PREFETCH_S`, 1 at least."""
        return max(1, min(PREFETCH_MAX, int(self.records_per_s * PREFETCH_S)))


class Demand:
    """The number of records that may wait.

    A free slot is a reason to ask for a record only when handlers really run side by side: those
    that compute keep the others waiting, whatever the concurrency. So what is asked for free slots
    starts small, doubles while everything that came was started, and shrinks to what runs when
    records wait beside free slots.

    Args:
        concurrency: Handlers at a time.
        batch_max: Most records of one handler.
        limit: Most records that may wait (`sharecoord.buffer.records`).
    """

    def __init__(self, concurrency: int, batch_max: int, limit: int) -> None:
        self._concurrency = concurrency
        self._batch_max = batch_max
        self._all = concurrency * batch_max
        self._limit = limit
        self._useful = min(self._all, FIRST)
        self.pace = Pace()
        self._was_handed_back = False

    def handed_back(self) -> None:
        """Allows no waiting records until a slot is free, because some had to be handed back.

        Else the same ones would come and go back again and again, while others could have them.
        """
        self.pace = Pace()
        self._was_handed_back = True

    def computing(self, running: int) -> None:
        """Lowers the demand: records wait though slots are free, so handlers compute."""
        self._useful = min(self._useful, max(FIRST, running + FIRST))

    def room(self, *, running: int, jobs: int, waiting: int, held: int = 0) -> int:
        """The number of records that may wait now.

        Args:
            running: Records that handlers have.
            jobs: Running handlers.
            waiting: Records that wait already for a free slot.
            held: Records that wait for something else.
        """
        room = self.pace.prefetch
        if held > waiting and self.pace.records_per_s:
            # Free slots are of no use to what waits: more of them are not asked for soon.
            self._useful = max(1, min(self._useful, 2 * running))
            extra = min(held, HELD_MAX, int(self.pace.records_per_s * HELD_S))
            return min(room + extra, self._limit)
        if jobs < self._concurrency:
            self._was_handed_back = False
            if not (waiting or held) and running >= self._useful // 2:
                self._useful = min(self._all, self._useful * 2)
            room = max(room, self._useful - running, self._batch_max)
        elif self._was_handed_back:
            return 0
        return min(room, self._limit)
