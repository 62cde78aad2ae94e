"""The measures near the memory limit (design 12).

Memory (`runtime.memory.use` counts it) is looked at every `LOOK_INTERVAL_S`, and at once when
caches and deliveries alone have used up the room below the next mark (`MemoryBudget`).

While memory is short each group with anything in memory has a part of it, by max-min fairness
(docs/decisions/0013, `core.dispatch.fair_share.fair_part`). A group that needs less leaves the rest
to the others, so a group alone has all of it. Only groups above their part are stopped, the others
go on. Near the limit, in this order:

1. Payloads that are kept for redelivery go: everything can be read again.
2. At `memory.read.stop.ratio` the largest share-partitions of a group stop reading, as many as
   cover its excess. Half way to the next mark all of them stop.
3. At `memory.acquire.stop.ratio` payloads that were read ahead go, the largest share-partition
   first. When that is not enough, acquiring stops until acknowledgements, lock ends and slow
   streams have made room. Only where nothing is under a lock a few due records still go out
   (`LIFELINE_RECORDS`), else no acknowledgement could ever come and ranges would stay for ever.
4. The room above that mark is for groups below their part. At the limit itself they read on up to
   `RESERVE_BYTES`.

Freed memory that the allocator keeps (`runtime.kernel.allocator`) goes to the kernel when the
process has grown beyond the mark half way: what is counted needs the room.

So the sum exceeds the limit by no more than these reserves and what comes between two looks: one
read of each share-partition, one payload that is read again, the ranges that acknowledgements
split, and deliveries of what groups below their part have in their caches.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import structlog

from sharecoord.core.dispatch.fair_share import fair_part
from sharecoord.runtime.kernel.allocator import FreedMemory
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.memory.stalled_streams import StalledStreams
from sharecoord.runtime.memory.use import (
    GroupUse,
    MemoryFigures,
    MemoryLevel,
    partition_bytes,
    use_of,
)
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.runtime.partition.record_cache import FRESH_BYTES_HIGH

if TYPE_CHECKING:
    from sharecoord.runtime.group.actor import GroupActor

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 0.25
"""Interval of looks for the parts that grow slowly; caches and deliveries ask for looks."""

LOOKS_PER_LIMIT = 32
"""Growth by the limit divided by this asks for a look, so that fast growth does not ask all the
time (16 MiB of the default: a few dozen times a second at the fastest)."""

RELEASE_RATIO = 0.05
"""A measure that began at a mark ends this part of the limit below the mark. Without it each batch
that is read and each acknowledgement would turn it on and off, and each turn costs a fetch."""

RESUME_RATIO = 0.5
"""A held-back share-partition that is no longer one of the largest reads on once it has worked off
this part of its records: pausing and resuming throws away the queue of the Kafka client."""

RESERVE_BYTES = 1 << 20
"""With less in memory a group reads on, whatever the others have: the largest record that brokers
take by default (`message.max.bytes`) fits in."""

RESERVES_RATIO = 1 / 8
"""The reserves of all groups together are no more than this part of the limit."""


GIVE_BACK_INTERVAL_S = 0.1
"""Freed memory goes to the kernel this often at most: what comes from there again costs 1.3 ms for
each MiB."""

GIVE_BACK_RATIO = 0.05
"""Part of the time that giving back may take: 10 ms for 50 MiB, 40 ms with 100,000 free blocks."""


class _Held(NamedTuple):
    """A share-partition that is held back."""

    group: GroupActor
    began_with: int
    """Size in bytes when that began."""


class MemoryWatch:
    """Looks at the memory of a coordinator's groups and keeps it below the limit."""

    def __init__(self, context: Context, groups: Mapping[str, GroupActor]) -> None:
        limits = context.limits.memory
        self._context = context
        self._budget = context.budget
        self._groups = groups
        self._limit = limits.limit_bytes
        self._read_mark = int(limits.limit_bytes * limits.read_stop_ratio)
        self._acquire_mark = int(limits.limit_bytes * limits.acquire_stop_ratio)
        self._all_reads_mark = (self._read_mark + self._acquire_mark) // 2
        self._read_release = self._released_at(limits.read_stop_ratio)
        self._acquire_release = self._released_at(limits.acquire_stop_ratio)
        self._held: dict[PartitionActor, _Held] = {}
        self._starved: set[GroupActor] = set()
        """Groups with a share-partition that is to begin reading anew: they need more memory."""
        self._looking = False
        self._stalled = StalledStreams()
        self._freed = FreedMemory()
        self._give_back_from_s = -math.inf
        self.figures = MemoryFigures(MemoryLevel.OPEN, self._limit)
        context.budget.on_alarm = self._look_soon

    def _released_at(self, ratio: float) -> int:
        return int(self._limit * max(ratio - RELEASE_RATIO, ratio / 2))

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            self._look_safely()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _look_soon(self) -> None:
        """Looks in the next turn of the loop: the caller is in the middle of a change."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._alarmed)

    def _alarmed(self) -> None:
        self._looking = False
        self._look_safely(release=False)

    def _look_safely(self, *, release: bool = True) -> None:
        """Looks; logs an error, so that the next look comes and the limit holds."""
        try:
            self.look(release=release)
        except Exception:
            log.exception("a look at memory failed; the next one comes")

    def look(self, *, release: bool = True) -> None:
        """Measures, gives up payloads that can be read again, stops and resumes.

        With `release` measures may end. Not after an alarm: payloads that were given up would be
        read and given up again in a circle that lets no time pass.
        """
        before = self.figures.level
        uses = self._measure()
        if self._total(uses) >= self._read_mark or before is not MemoryLevel.OPEN:
            self._evict(uses)
        kept: dict[PartitionActor, GroupActor] = {}
        if self._is_short(before, self._total(uses)):
            kept = self._give_up_read_ahead(uses)
        total = self._total(uses)
        level = self._level(before, total)
        if not release:
            level = max(before, level, key=[*MemoryLevel].index)
            kept = {actor: held.group for actor, held in self._held.items()} | kept
        self._hold_back(level, uses, total, kept)
        self._note(level, uses)
        if level is not before:
            self._say(before)
        self._set_marks(level, uses, total)
        self._give_back(total)

    # -- measuring ------------------------------------------------------------------------------

    def _measure(self) -> list[GroupUse]:
        """The use of groups that have or need memory; stalled streams are ended."""
        by_group = {group: use_of(group) for group in self._groups.values()}
        for group, left_bytes in self._stalled.left_over():
            if group in by_group:
                by_group[group].send_buffers += left_bytes
                by_group[group].recount()
        for use in by_group.values():
            if use.unread:
                self._stalled.look(use)
        return [use for use in by_group.values() if use.used_bytes or use.group in self._starved]

    @property
    def _shared_bytes(self) -> int:
        """Bytes that no group has by itself."""
        context = self._context
        unsent = context.dead_letters.unsent_bytes
        return context.committer.committing_bytes + context.reader.open_bytes + unsent

    def _total(self, uses: Iterable[GroupUse]) -> int:
        return self._shared_bytes + sum(use.used_bytes for use in uses)

    def _part(self, uses: Sequence[GroupUse], mark: int) -> float:
        """The part of each group when all together come to a mark."""
        left = max(mark - self._shared_bytes, 0)
        starved = self._starved
        needs = [math.inf if use.group in starved else use.used_bytes for use in uses]
        return fair_part(needs, left)

    def _read_part(self, uses: Sequence[GroupUse], total: int, mark: int) -> float:
        """As `_part`, for reading; no more than the reserve once the limit is reached."""
        part = self._part(uses, mark)
        if total < self._limit:
            return part
        return min(part, RESERVE_BYTES, self._limit * RESERVES_RATIO / max(len(uses), 1))

    # -- making room ----------------------------------------------------------------------------

    def _evict(self, uses: Sequence[GroupUse]) -> None:
        """Gives up payloads kept for redelivery, of the largest of each group above its part."""
        part = self._part(uses, self._read_release)
        for use in uses:
            if use.used_bytes <= part:
                continue
            for _, actor in use.sizes():
                excess = int(use.used_bytes - part)
                if actor.partition is not None and excess > 0:
                    actor.cache.evict(actor.partition.window.end_offset, excess)
                    use.recount()

    def _give_up_read_ahead(self, uses: Sequence[GroupUse]) -> dict[PartitionActor, GroupActor]:
        """Gives up payloads of groups above their part, the largest first, until it is enough.

        Returns the share-partitions that do not read before the next look in any case.
        """
        part = self._part(uses, self._acquire_release)
        excess = self._total(uses) - self._acquire_release
        above = [use for use in uses if use.used_bytes > part]
        for use in sorted(above, key=lambda use: -use.used_bytes):
            for _, actor in use.sizes():
                if excess > 0 and use.used_bytes > part:
                    excess -= actor.log.give_up()
                    use.recount()
        return {
            actor: use.group
            for use in above
            for actor in use.group.partitions.values()
            if actor.log.given_up
        }

    def _give_back(self, total: int) -> None:
        """Gives freed memory to the kernel that would be beyond the limit."""
        began_s = time.monotonic()
        if total < self._limit // 2 or began_s < self._give_back_from_s:
            return
        if self._freed.above_rest_bytes > self._all_reads_mark:
            self._freed.give_back()
            took_s = time.monotonic() - began_s
            pause_s = max(GIVE_BACK_INTERVAL_S, took_s / GIVE_BACK_RATIO)
            self._give_back_from_s = began_s + pause_s

    def _is_short(self, before: MemoryLevel, total: int) -> bool:
        """Whether acquiring must stop for groups above their part."""
        stopped = before is MemoryLevel.ACQUIRING_STOPPED
        return total >= self._acquire_mark or (stopped and total > self._acquire_release)

    def _level(self, before: MemoryLevel, total: int) -> MemoryLevel:
        if self._is_short(before, total):
            return MemoryLevel.ACQUIRING_STOPPED
        if total >= self._read_mark or (
            before is not MemoryLevel.OPEN and total > self._read_release
        ):
            return MemoryLevel.READS_STOPPED
        return MemoryLevel.OPEN

    def _hold_back(
        self,
        level: MemoryLevel,
        uses: Sequence[GroupUse],
        total: int,
        kept: Mapping[PartitionActor, GroupActor],
    ) -> None:
        """Stops the largest of each group above its part, and `kept`; the others read (on)."""
        former, self._held = self._held, {}
        for actor, group in kept.items():
            began_with = former[actor].began_with if actor in former else 0
            self._held[actor] = _Held(group, max(began_with, partition_bytes(actor)))
        if level is not MemoryLevel.OPEN:
            part = self._read_part(uses, total, self._read_release)
            for use in uses:
                if use.used_bytes > part:
                    self._hold_back_of(use, use.used_bytes - part, total, former)
        self._release(uses, total, former)
        for actor in self._held:
            if not actor.log.held_back:
                actor.log.hold_back(held=True)

    def _hold_back_of(
        self,
        use: GroupUse,
        excess: float,
        total: int,
        former: Mapping[PartitionActor, _Held],
    ) -> None:
        """Stops the largest of one group until what they hold covers its excess."""
        everything = total >= self._all_reads_mark
        covered = 0
        for size, actor in use.sizes():
            began_with = former[actor].began_with if actor in former else 0
            undrained = size > began_with * RESUME_RATIO > 0
            if covered < excess or everything or undrained:
                self._held[actor] = _Held(use.group, max(began_with, size))
            if actor in self._held:
                covered += size

    def _release(
        self, uses: Sequence[GroupUse], total: int, former: Mapping[PartitionActor, _Held]
    ) -> None:
        """Lets share-partitions read that are not held back any more.

        Those that must begin anew do so as far as there is room, one at the least: if all did at
        once, their payloads would have to be given up before any member gets them. The smallest
        groups come first, then the longest wait.
        """
        released = [actor for actor in former if actor not in self._held]
        if released:
            used = {use.group: use.used_bytes for use in uses}
            released.sort(key=lambda actor: used.get(former[actor].group, 0))
        waiting: dict[PartitionActor, _Held] = {}
        room = max(self._read_mark - total, FRESH_BYTES_HIGH)
        for actor in released:
            if actor.log.given_up and not actor.log.resting:
                if room < FRESH_BYTES_HIGH:
                    waiting[actor] = former[actor]
                    continue
                actor.log.given_up = False
                if actor.state is ActorState.ACTIVE:
                    room -= FRESH_BYTES_HIGH
                    actor.log.start(committed=actor.reads_committed)
            actor.log.hold_back(held=False)
        self._held = waiting | self._held
        self._starved = {held.group for actor, held in self._held.items() if actor.log.given_up}

    def _set_marks(self, level: MemoryLevel, uses: Sequence[GroupUse], total: int) -> None:
        """Tells the budgets how much more may come before the next look, and be acquired at all."""
        budget = self._budget
        is_short = level is MemoryLevel.ACQUIRING_STOPPED
        budget.sent_bytes = 0
        marks = (self._read_mark, self._all_reads_mark, self._acquire_mark)
        above = min((mark for mark in marks if mark > total), default=total)
        room = max(above - total, self._limit // LOOKS_PER_LIMIT)
        budget.acquire_bytes = -1
        if not is_short:
            room = min(room, self._acquire_mark - total)
            budget.acquire_bytes = budget.used_bytes + self._acquire_mark - total
        budget.read_bytes = budget.used_bytes + self._all_reads_mark - total
        if self._starved:
            # The quickest reader would take the room that was made for all.
            budget.read_bytes = -1
        budget.alarm_bytes = budget.used_bytes + room
        self._divide(uses, total, is_short=is_short)

    def _divide(self, uses: Sequence[GroupUse], total: int, *, is_short: bool) -> None:
        """Tells each group its part; groups that were refused and are below it go on."""
        budget = self._budget
        read_part = self._read_part(uses, total, self._all_reads_mark)
        acquire_part = self._part(uses, self._acquire_release)
        caches = [group.budget.used_bytes for group in self._groups.values()]
        cache_part = int(fair_part(caches, budget.limit_bytes))
        used = {use.group: use.used_bytes for use in uses}
        for group in self._groups.values():
            own = group.budget
            own.cache_bytes = cache_part
            own.looked(used.get(group, 0), read_part, acquire_part, is_short=is_short)
            if own.refused and not own.acquiring_stopped:
                own.refused = False
                group.dispatcher.wake_all()
            if own.read_refused:
                own.read_refused = False
                for actor in group.partitions.values():
                    actor.log.adjust_appetite()

    # -- telling --------------------------------------------------------------------------------

    def _note(self, level: MemoryLevel, uses: Sequence[GroupUse]) -> None:
        """Notes the figures of this look."""
        most = max(uses, key=lambda use: use.used_bytes, default=None)
        largest = max(uses, key=lambda use: use.largest_bytes, default=None)
        actor = None if largest is None else largest.largest
        self.figures = MemoryFigures(
            level,
            self._limit,
            caches=self._budget.used_bytes + self._context.reader.open_bytes,
            ranges=sum(use.ranges for use in uses),
            key_tables=sum(use.key_tables for use in uses),
            pending=self._context.committer.committing_bytes,
            send_buffers=sum(use.send_buffers for use in uses)
            + self._context.dead_letters.unsent_bytes,
            largest=None if actor is None else actor.key,
            largest_bytes=0 if largest is None else largest.largest_bytes,
            largest_group="" if most is None else most.group.group_id,
            largest_group_bytes=0 if most is None else most.used_bytes,
            held_back=len(self._held),
        )

    def _say(self, before: MemoryLevel) -> None:
        """Logs a change of the level."""
        now = self.figures
        facts = {each.name: getattr(now, each.name) for each in fields(now)}
        facts |= {"was": before.value, "level": now.level.value, "used_bytes": now.used_bytes}
        if now.level is MemoryLevel.OPEN:
            log.info("memory is below its limit again", **facts)
        elif now.level is MemoryLevel.READS_STOPPED:
            log.warning("memory limit: groups above their part read less", fix=FIX, **facts)
        else:
            log.warning("memory limit: groups above their part acquire nothing", fix=FIX, **facts)


FIX = "raise memory.limit, or let the members of the largest group work off what they hold"
