"""The memory limit (design 12): what is counted, and what happens near the limit.

Counted are ranges, record caches, key tables, changes that wait for their commit, send buffers.
The parts know their sizes, or their number of entries; nothing is counted per record. Memory is
looked at every `LOOK_INTERVAL_S`, and at once when caches and deliveries alone have used up what
was left below the next mark (`MemoryBudget`).

Near the limit, in this order:

1. Cached payloads for redelivery go: everything can be read again.
2. At `memory.read.stop.ratio` the largest share-partitions stop reading, as many as are needed to
   cover what is too much; the others go on. Half way to the next mark all of them stop.
3. At `memory.acquire.stop.ratio` what was read ahead goes, the largest first. When that is not
   enough, acquiring stops for all until acknowledgements, lock ends and slow streams have made
   room. Only where nothing is under a lock a few due records still go out (`LIFELINE_RECORDS`),
   else no acknowledgement could ever come and ranges would stay for ever.

So the sum exceeds the limit by no more than what comes between two looks: one read of each
share-partition, one payload that is read again, and the ranges that acknowledgements split.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from sharecoord.core.changes import PartitionKey
from sharecoord.core.window import Window
from sharecoord.runtime import loading
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.context import Context
from sharecoord.runtime.partition_actor import PartitionActor

if TYPE_CHECKING:
    from sharecoord.runtime.group_actor import GroupActor

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 0.25
"""Caches and deliveries tell by themselves when they grow; this is for all that grows slowly."""

LOOKS_PER_LIMIT = 32
"""Growth by this part of the limit is looked at once, so fast growth is not looked at all the time
(16 MiB of the default: a few dozen times a second at the fastest)."""

RELEASE_RATIO = 0.05
"""What came into force at a mark ends this part of the limit below it. Without it each batch that
is read and each acknowledgement would turn it on and off, and each turn costs a fetch."""

RESUME_RATIO = 0.5
"""A held-back share-partition that is no longer one of the largest reads on only when it has worked
off so much of what it had: pausing and resuming throws away what the Kafka client has fetched."""

RANGE_BYTES = 550
"""One range: its state, its place in the map, its lock, its entries in the heaps. Measured with
tracemalloc: 520 to 531 when each range has a lock of its own, 427 to 449 when due, 90 when cut from
a shared batch; the largest counts."""

CHANGED_RANGE_BYTES = 110
"""A changed range while it waits to be stored, in the window's own list; measured: 86 to 108."""

LANE_BYTES = 1_850
"""One key with unfinished records in a group that keeps order; measured with one record: 1,905."""

KEYED_RECORD_BYTES = 56
"""One unfinished record in such a group: offset, place in its lane, key hash; measured: 50-54."""


class MemoryLevel(enum.Enum):
    """What is in force because of the limit."""

    OPEN = "open"
    READS_STOPPED = "reads_stopped"
    ACQUIRING_STOPPED = "acquiring_stopped"


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory at the last look, in bytes.

    Attributes:
        caches: Payloads read ahead or kept for redelivery.
        ranges: Ranges in flight.
        key_tables: Keys of groups that keep order.
        pending: Changes that wait for their commit.
        send_buffers: Deliveries that wait for their commit or for their stream.
        largest: The share-partition with the most, None = there is none.
        held_back: How many share-partitions do not read.
    """

    level: MemoryLevel
    limit_bytes: int
    caches: int = 0
    ranges: int = 0
    key_tables: int = 0
    pending: int = 0
    send_buffers: int = 0
    largest: PartitionKey | None = None
    largest_bytes: int = 0
    held_back: int = 0

    @property
    def used_bytes(self) -> int:
        """The sum of the parts."""
        return self.caches + self.ranges + self.key_tables + self.pending + self.send_buffers


def range_bytes(window: Window) -> int:
    """What the ranges of a window take, with those changes that are not taken for a commit yet."""
    return RANGE_BYTES * len(window.ranges) + CHANGED_RANGE_BYTES * len(window.dirty)


def key_bytes(window: Window) -> int:
    """What the keys of a window take; 0 in groups without order."""
    if window.order is None:
        return 0
    return LANE_BYTES * len(window.order.lanes) + KEYED_RECORD_BYTES * window.unfinished


def partition_bytes(actor: PartitionActor) -> int:
    """What one share-partition takes: payloads, ranges, keys."""
    if actor.partition is None:
        return actor.cache.size_bytes
    window = actor.partition.window
    return actor.cache.size_bytes + range_bytes(window) + key_bytes(window)


class MemoryWatch:
    """Looks at the memory of a coordinator's groups and keeps it below the limit.

    Args:
        context: Ports and limits of the coordinator.
        groups: Its groups, live.
    """

    def __init__(self, context: Context, groups: Mapping[str, GroupActor]) -> None:
        limits = context.memory
        self._context = context
        self._budget = context.budget
        self._groups = groups
        self._limit = limits.limit_bytes
        self._read_mark = int(limits.limit_bytes * limits.read_stop_ratio)
        self._acquire_mark = int(limits.limit_bytes * limits.acquire_stop_ratio)
        self._all_reads_mark = (self._read_mark + self._acquire_mark) // 2
        self._read_release = self._release(limits.read_stop_ratio)
        self._acquire_release = self._release(limits.acquire_stop_ratio)
        self._held: dict[PartitionActor, int] = {}
        """What is held back, with its size when that began."""
        self._looking = False
        self.figures = MemoryFigures(MemoryLevel.OPEN, self._limit)
        context.budget.on_alarm = self._look_soon

    def _release(self, ratio: float) -> int:
        return int(self._limit * max(ratio - RELEASE_RATIO, ratio / 2))

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _look_soon(self) -> None:
        """In the next turn of the loop: whoever grows is in the middle of something."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._alarmed)

    def _alarmed(self) -> None:
        self._looking = False
        self.look(release=False)

    def look(self, *, release: bool = True) -> None:
        """Measures, gives up what can be read again, stops and resumes.

        Args:
            release: Whether what is in force may end. Not after an alarm: what was given up would
                be read and given up again in a circle that lets no time pass.
        """
        before = self.figures.level
        sizes = self._sizes()
        others = self._others()
        total = sum(others.values()) + self._budget.used_bytes
        if total >= self._read_mark or before is not MemoryLevel.OPEN:
            total -= self._evict(sizes, total - self._read_release)
        given_up: set[PartitionActor] = set()
        if total >= self._acquire_mark or (
            before is MemoryLevel.ACQUIRING_STOPPED and total > self._acquire_release
        ):
            given_up = set(sizes)
            total -= self._give_up_read_ahead(sizes, total - self._acquire_release)
        given_up = {actor for actor in given_up if actor.read_ahead_given_up}
        level = self._level(before, total)
        if not release:
            level = max(before, level, key=[*MemoryLevel].index)
            given_up |= self._held.keys()
        self._hold_back(level, sizes, total, given_up)
        largest = max(sizes, key=sizes.__getitem__, default=None)
        self.figures = MemoryFigures(
            level,
            self._limit,
            caches=self._budget.used_bytes,
            **others,
            largest=None if largest is None else largest.key,
            largest_bytes=0 if largest is None else sizes[largest],
            held_back=len(self._held),
        )
        if level is not before:
            self._say(before)
        self._set_marks(level, total)

    # -- measuring ------------------------------------------------------------------------------

    def _actors(self) -> Iterator[tuple[GroupActor, PartitionActor]]:
        for group in self._groups.values():
            for actor in group.partitions.values():
                yield group, actor

    def _sizes(self) -> dict[PartitionActor, int]:
        """Share-partitions with their sizes, the largest first."""
        found = [(partition_bytes(actor), actor) for _, actor in self._actors()]
        found.sort(key=lambda item: (-item[0], item[1].partition_id))
        return {actor: size for size, actor in found}

    def _others(self) -> dict[str, int]:
        """All parts but the caches, by their names in `MemoryFigures`."""
        windows = [a.partition.window for _, a in self._actors() if a.partition is not None]
        unsent = sum(
            session.channel.unsent_bytes
            for group in self._groups.values()
            for session in group.sessions.values()
            if session.channel is not None
        )
        waiting = sum(e.delivery.size_bytes for _, a in self._actors() for e in a.sending)
        return {
            "ranges": sum(map(range_bytes, windows)),
            "key_tables": sum(map(key_bytes, windows)),
            "pending": self._context.committer.committing_bytes,
            "send_buffers": unsent + waiting,
        }

    # -- making room ----------------------------------------------------------------------------

    @staticmethod
    def _evict(sizes: Iterable[PartitionActor], excess: int) -> int:
        """Gives up payloads kept for redelivery, of the largest first; returns how many bytes."""
        freed = 0
        for actor in sizes:
            if freed >= excess:
                break
            if actor.partition is not None:
                freed += actor.cache.evict(actor.partition.window.end_offset, excess - freed)
        return freed

    @staticmethod
    def _give_up_read_ahead(sizes: Iterable[PartitionActor], excess: int) -> int:
        """Gives up all payloads of the largest; returns how many bytes."""
        freed = 0
        for actor in sizes:
            if freed >= excess:
                break
            freed += actor.give_up_read_ahead()
        return freed

    def _level(self, before: MemoryLevel, total: int) -> MemoryLevel:
        if total >= self._acquire_mark or (
            before is MemoryLevel.ACQUIRING_STOPPED and total > self._acquire_release
        ):
            return MemoryLevel.ACQUIRING_STOPPED
        if total >= self._read_mark or (
            before is not MemoryLevel.OPEN and total > self._read_release
        ):
            return MemoryLevel.READS_STOPPED
        return MemoryLevel.OPEN

    def _hold_back(
        self,
        level: MemoryLevel,
        sizes: Mapping[PartitionActor, int],
        total: int,
        kept: Set[PartitionActor],
    ) -> None:
        """Stops the largest until what they hold covers the excess; the others read (on).

        Args:
            level: What is in force.
            sizes: All share-partitions, the largest first.
            total: Bytes in use.
            kept: What does not read before the next look in any case.
        """
        held: dict[PartitionActor, int] = {}
        everything = total >= self._all_reads_mark
        excess = 0 if level is MemoryLevel.OPEN else total - self._read_release
        covered = 0
        for actor, size in sizes.items():
            began_with = self._held.get(actor, 0)
            undrained = size > began_with * RESUME_RATIO > 0
            needed = excess > 0 and (covered < excess or everything or undrained)
            if needed or actor in kept:
                held[actor] = max(began_with, size)
                covered += size
        self._held = held
        for group, actor in self._actors():
            actor.hold_back(held=actor in held)
            if actor not in held and actor.read_ahead_given_up and not actor.resting:
                actor.read_ahead_given_up = False
                if actor.state is ActorState.ACTIVE:
                    loading.start_reading(self._context, group, actor)

    def _set_marks(self, level: MemoryLevel, total: int) -> None:
        """Tells the budget how much more may come before the next look, and be acquired at all."""
        budget = self._budget
        budget.sent_bytes = 0
        marks = (self._read_mark, self._all_reads_mark, self._acquire_mark)
        above = min((mark for mark in marks if mark > total), default=total)
        room = max(above - total, self._limit // LOOKS_PER_LIMIT)
        budget.acquiring_stopped = level is MemoryLevel.ACQUIRING_STOPPED
        budget.acquire_bytes = budget.used_bytes + self._acquire_mark - total
        if not budget.acquiring_stopped:
            room = min(room, self._acquire_mark - total)
        budget.alarm_bytes = budget.used_bytes + room
        if budget.refused and not budget.acquiring_stopped:
            budget.refused = False
            for group in self._groups.values():
                group.schedule_pump()

    def _say(self, before: MemoryLevel) -> None:
        """One line for each change."""
        now = self.figures
        facts = {
            "was": before.value,
            "used_bytes": now.used_bytes,
            "limit_bytes": now.limit_bytes,
            "caches": now.caches,
            "ranges": now.ranges,
            "key_tables": now.key_tables,
            "pending": now.pending,
            "send_buffers": now.send_buffers,
            "largest": now.largest,
            "largest_bytes": now.largest_bytes,
            "held_back": now.held_back,
        }
        if now.level is MemoryLevel.OPEN:
            log.info("memory is below its limit again", **facts)
        elif now.level is MemoryLevel.READS_STOPPED:
            log.warning("memory limit: the largest share-partitions do not read", fix=FIX, **facts)
        else:
            log.warning("memory limit: nothing new is acquired", fix=FIX, **facts)


FIX = "raise memory.limit, or let members work off what they hold"
