"""Delayed records that a share-partition leaves to the store until their time comes (design 5.4).

Of many delayed ranges the first due ones are in memory; of the others the window keeps the offsets
alone (`core.offset_set`). They are read again, a page at a time, shortly before they are due, and
no faster than members work them off. Groups with order park none: unknown keys would hold back all
others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from sharecoord.core.changes import DelayedPlace, InFlight, LoadedPartition
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import Ordering
from sharecoord.core.window.window import NEVER_MS, Window
from sharecoord.errors import InternalError, SharecoordError
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.claimed import ClaimedPartition
from sharecoord.runtime.partition.recovery import ranges_of

log = structlog.get_logger(__name__)

CLOCK_SPARE_MS: Final = 1_000
"""Ranges are looked for earlier than their time by this: the store's clock may have been measured
anew since they were stored. Ranges that are read twice are passed over."""

AGAIN_S: Final = 0.5
"""Wait after the store did not answer."""

_BEGIN: Final = DelayedPlace(0, -1)


class Parking:
    """The parked ranges of one share-partition."""

    def __init__(self, part: ClaimedPartition, on_below_log_start: Callable[[int], None]) -> None:
        """Reads nothing yet; `on_below_log_start` archives read ranges below the log's start."""
        self._context = part.context
        self._part = part
        self._on_below_log_start = on_below_log_start
        self._after = _BEGIN
        """All parked ranges come behind this place."""
        self._parks = 0
        """How often ranges were parked: a page that was read meanwhile may be without them."""
        self._below: int | None = None
        """The lowest parked offset that is not in the log any more and not kept."""
        self._reading: asyncio.Task[None] | None = None

    def begin(self, loaded: LoadedPartition) -> None:
        """A new incarnation is about to be served."""
        self.end()
        self._after, self._below = loaded.parked.after, None

    def end(self) -> None:
        """The incarnation is over."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()

    @staticmethod
    def holds_back(partition: SharePartition, settings: PartitionSettings) -> bool:
        """Whether these settings need the parked ranges: order needs all keys in memory."""
        ordered = settings.ordering is not Ordering.UNORDERED
        return ordered and partition.window.parked.records > 0

    def park(self, window: Window) -> bool:
        """Parks the ranges that are due last. Changes taken for commits must be stored by now.

        Returns whether more ranges are to be parked once this commit is stored.
        """
        limits = self._context.limits.parking
        if window.follower is not None or window.delayed_ranges <= limits.most:
            return False
        before = window.parked.records
        window.park(limits.kept)
        if window.parked.records > before:
            self._parks += 1
            at_ms = self._context.clock.to_store(window.parked_from_ms) - CLOCK_SPARE_MS
            self._after = min(self._after, DelayedPlace(max(at_ms, 0), -1))
        return window.delayed_ranges > limits.most

    def look(self, partition: SharePartition, now_ms: int) -> list[int]:
        """Starts to read the next ranges when it is time and they have room.

        Returns the latest time of the next call, if nothing else happens before.
        """
        if self._reading is None and self._is_wanted(partition, now_ms):
            name = f"delayed-{self._part.key.topic}"
            self._reading = self._context.tasks.spawn(self._read(partition), name)
        at_ms = partition.window.parked_from_ms - self._context.limits.parking.ahead_ms
        return [at_ms] if at_ms > now_ms else []

    def _is_wanted(self, partition: SharePartition, now_ms: int) -> bool:
        if not partition.window.parked.records:
            return False
        return self._below is not None or self._is_time(partition, now_ms)

    def log_start_moved(self, partition: SharePartition) -> None:
        """Looks for parked records below the log's start without a kept payload."""
        parked, end = partition.window.parked, partition.log_start_offset
        self._below = parked.first_without(partition.kept, end)

    def _is_time(self, partition: SharePartition, now_ms: int) -> bool:
        window, limits = partition.window, self._context.limits.parking
        if now_ms < window.parked_from_ms - limits.ahead_ms:
            return False
        next_ms = window.next_due_ms()
        enough = window.delayed_ranges >= limits.low and (next_ms or 0) < window.parked_from_ms
        return not enough and window.due < partition.settings.record_locks_max

    async def _read(self, partition: SharePartition) -> None:
        """Reads pages as long as some are wanted."""
        try:
            while self._is_wanted(partition, self._context.clock.now_ms()):
                await self._read_page(partition)
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None

    async def _read_page(self, partition: SharePartition) -> None:
        below = self._below
        try:
            if below is None:
                await self._read_next(partition)
            else:
                await self._read_lowest(partition, below)
        except SharecoordError as error:
            log.warning("delayed records not read", partition=self._part.key, why=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _read_next(self, partition: SharePartition) -> None:
        """The page that is due next."""
        context, window, parks, after = self._context, partition.window, self._parks, self._after
        page = context.limits.parking.page
        rows = await context.caller.call(
            context.store.read_delayed, self._part.partition_id, after=after, max_rows=page
        )
        if self._part.partition is not partition:
            return
        is_last = len(rows) < page
        from_ms = context.clock.now_ms()
        if not is_last:
            last = rows[len(rows) - 1]
            self._after = DelayedPlace(last.available_at_ms, last.first_offset)
            from_ms = context.clock.from_store(last.available_at_ms)
        if parks != self._parks:
            # The page may be without what was parked meanwhile.
            self._after, from_ms = min(self._after, after), window.parked_from_ms
        self._unpark(partition, rows, from_ms)
        if is_last and parks == self._parks:
            self._begin_anew(window, after)

    def _begin_anew(self, window: Window, after: DelayedPlace) -> None:
        """Begins from the front after the last page: other parked ranges come before it."""
        self._after = _BEGIN
        if window.parked.records and after == _BEGIN:
            self._part.drop(InternalError("delayed records are not in the store"))

    async def _read_lowest(self, partition: SharePartition, lowest: int) -> None:
        """The page with the lowest offsets that are to be archived."""
        context, window = self._context, partition.window
        rows = await context.caller.call(
            context.store.read_in_flight,
            self._part.partition_id,
            from_offset=lowest,
            max_rows=context.limits.parking.page,
        )
        if self._part.partition is partition:
            self._unpark(partition, InFlight.of(rows), window.parked_from_ms)
            self.log_start_moved(partition)
            if self._below == lowest:
                self._part.drop(InternalError("delayed records are not in the store"))

    def _unpark(self, partition: SharePartition, rows: InFlight, from_ms: int) -> None:
        found = ranges_of(rows, self._context.clock, lock_grace_ms=0)
        partition.window.unpark(*found, from_ms)
        if any(first < partition.log_start_offset for first in found[0]):
            self._on_below_log_start(partition.log_start_offset)
        self._part.on_time()


def delayed_max(context: Context, settings: PartitionSettings) -> int | None:
    """Most delayed ranges that a claim reads; None = all."""
    return context.limits.parking.kept if settings.ordering is Ordering.UNORDERED else None


def check_parked(loaded: LoadedPartition, settings: PartitionSettings) -> None:
    """Raises SharecoordError when a group has come to keep order since the claim."""
    if loaded.parked.offsets.records and settings.ordering is not Ordering.UNORDERED:
        raise SharecoordError("order is kept from now on: all delayed records are needed")


def parked_from_ms(context: Context, loaded: LoadedPartition) -> int:
    """No range that a claim has left is due earlier, by this process's clock."""
    if not loaded.parked.offsets.records:
        return NEVER_MS
    return context.clock.from_store(loaded.parked.after.available_at_ms)
